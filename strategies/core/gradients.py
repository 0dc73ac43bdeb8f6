"""Sums of gradients: over microbatches, over devices, and of squares for the global norm."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from strategies.config import TrainConfig
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.device_mesh import mark_varying
from strategies.model.gpt import map_weights, spec_tree
from strategies.model.order import after
from strategies.model.weights import Weights, WeightSpec
from strategies.step import LossTerms, Tokens

Arrays = TypeVar("Arrays", Weights, list[Array])
LossAndGrads = Callable[[Weights, Tokens], tuple[LossTerms, Weights]]


def all_reduce(loss: LossTerms, grads: Weights, plan: Plan) -> tuple[LossTerms, Weights]:
    """Sum the loss over replicas, and each gradient over those of its weight, in `reduce_dtype`; float32 results."""
    specs: list[WeightSpec] = jax.tree.leaves({part: spec_tree(plan.config)[part] for part in grads})
    axes = [plan.replicas_of(spec) for spec in specs]
    leaves, structure = jax.tree.flatten(grads)
    leaves = to_sum(leaves, axes, specs, plan.train)
    sums = sum_over([*[plan.placement.replicas] * len(loss), *axes], [*loss.values(), *leaves])
    loss = dict(zip(loss, sums, strict=False))
    return loss, cast(jax.tree.unflatten(structure, sums[len(loss) :]), "float32")


def mark_shares(weights: Weights, plan: Plan) -> Weights:
    """Mark weights as varying over the axes along which each is replicated or updated in shards (`mark_varying`)."""

    def mark(weight: Array, spec: WeightSpec) -> Array:
        axes = tuple(dict.fromkeys((*plan.replicas_of(spec), *plan.placement.updates_of(spec.dims))))
        return mark_varying(weight, axes) if axes else weight

    return map_weights(mark, plan.config, weights)


def to_sum(
    grads: Sequence[Array], axes: Sequence[Axes], specs: Sequence[WeightSpec], train: TrainConfig
) -> list[Array]:
    """Cast each gradient that is summed over mesh axes to the dtype of the sums."""
    return [
        grad.astype(spec.summed_dtype(train.reduce_dtype)) if over else grad
        for grad, over, spec in zip(grads, axes, specs, strict=True)
    ]


def sum_over(axes: Sequence[Axes], arrays: Sequence[Array]) -> list[Array]:
    """Sum each array over its mesh axes. Arrays with the same axes are summed in one call."""
    sums = list(arrays)
    for group in dict.fromkeys(filter(None, axes)):
        chosen = [i for i, each in enumerate(axes) if each == group]
        for i, total in zip(chosen, lax.psum([arrays[i] for i in chosen], group), strict=True):
            sums[i] = total
    return sums


def cast(arrays: Arrays, dtype: str) -> Arrays:
    """Cast all arrays to a dtype."""
    return jax.tree.map(lambda x: x.astype(dtype), arrays)


def microbatched(tokens_BS: Tokens, microbatches: int) -> Tokens:
    """[B,S] -> [M,b,S]: a microbatch takes every M-th sequence.

    So if the compiler splits the batch, each device has a shard of each microbatch.
    """
    return tokens_BS.reshape(-1, microbatches, tokens_BS.shape[-1]).swapaxes(0, 1)


def total_of_microbatches(function: Callable[[Tokens], Array], tokens_BS: Tokens, microbatches: int) -> Array:
    """The sum of a function of each microbatch of the batch, one after another."""
    if microbatches == 1:
        return function(tokens_BS)
    return lax.map(function, microbatched(tokens_BS, microbatches)).sum(0)


def accumulated(loss_and_grads: LossAndGrads, microbatches: int) -> LossAndGrads:
    """Accumulate loss and gradients in float32 over microbatches of the batch, one after another."""
    if microbatches == 1:
        return loss_and_grads

    def accumulate(params: Weights, tokens_BS: Tokens) -> tuple[LossTerms, Weights]:
        def add(total: Any, tokens_bS: Tokens) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, loss_and_grads(params, tokens_bS)), None

        tokens_MbS = microbatched(tokens_BS, microbatches)
        shapes = jax.eval_shape(loss_and_grads, params, tokens_MbS[0])  # and over which axes they vary
        zeros = jax.tree.map(lambda like: jnp.zeros_like(like, jnp.float32), shapes)
        return lax.scan(add, zeros, tokens_MbS)[0]

    return accumulate


def global_norm(grads: Weights, specs: Weights) -> Float[Array, ""]:
    """Norm of all gradients of the model.

    Squares are summed on each device, then over the axes that split each weight, then over weights. Those of leading
    dense layers come first, and all others wait for them: these could run beside the backward loop over those layers,
    and virtual devices deadlock (benchmarks/program/deadlock.py).
    """
    squares: defaultdict[tuple[str, ...], list[Array]] = defaultdict(list)
    for part in sorted(grads, key=lambda part: (part != "lead", part)):
        for grad, spec in zip(jax.tree.leaves(grads[part]), jax.tree.leaves(specs[part]), strict=True):
            axes = tuple(sorted(axis for axis in jax.tree.leaves(tuple(spec)) if axis))
            squares[axes].append(jnp.sum(jnp.square(grad)))

    sums: list[Array] = []
    for axes, parts in squares.items():
        local: Any = sum(parts)
        if sums and "lead" in grads:
            local = after(sums[-1], local)
        sums.append(lax.psum(local, axes) if axes else local)
    total: Any = sum(sums)
    return jnp.sqrt(total)
