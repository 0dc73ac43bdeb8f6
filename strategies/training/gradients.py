"""Sums of gradients: over microbatches, over devices, and of squares for the global norm."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from strategies.model.weights import Weights
from strategies.step import Tokens

Arrays = TypeVar("Arrays", Weights, list[Array])
LossAndGrads = Callable[[Weights, Tokens], tuple[Array, Weights]]


def all_reduce(loss: Array, grads: Weights, axes: tuple[str, ...], dtype: str) -> tuple[Array, Weights]:
    """Sum loss and gradients over devices. Gradients are summed in `dtype`; the results are float32."""
    loss, sums = lax.psum((loss, cast(grads, dtype)), axes)
    return loss, cast(sums, "float32")


def cast(arrays: Arrays, dtype: str) -> Arrays:
    """Cast all arrays to a dtype."""
    return jax.tree.map(lambda x: x.astype(dtype), arrays)


def accumulated(loss_and_grads: LossAndGrads, microbatches: int) -> LossAndGrads:
    """Accumulate loss and gradients in float32 over microbatches of the batch, one after another."""
    if microbatches == 1:
        return loss_and_grads

    def accumulate(params: Weights, tokens_BS: Tokens) -> tuple[Array, Weights]:
        def add(total: Any, tokens_bS: Tokens) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, loss_and_grads(params, tokens_bS)), None

        # A microbatch takes every M-th sequence: if the compiler splits the batch, each device has a shard of each.
        tokens_MbS = tokens_BS.reshape(-1, microbatches, tokens_BS.shape[-1]).swapaxes(0, 1)
        shapes = jax.eval_shape(loss_and_grads, params, tokens_MbS[0])  # and over which axes they vary
        zeros = jax.tree.map(lambda like: jnp.zeros_like(like, jnp.float32), shapes)
        return lax.scan(add, zeros, tokens_MbS)[0]

    return accumulate


def global_norm(grads: Weights, specs: Weights) -> Float[Array, ""]:
    """Norm of all gradients of the model.

    Squares are summed on each device, then over the axes that split each weight, then over weights.
    """
    squares: defaultdict[tuple[str, ...], list[Array]] = defaultdict(list)
    for grad, spec in zip(jax.tree.leaves(grads), jax.tree.leaves(specs), strict=True):
        axes = tuple(sorted(axis for axis in jax.tree.leaves(tuple(spec)) if axis))
        squares[axes].append(jnp.sum(jnp.square(grad)))
    return jnp.sqrt(sum(lax.psum(sum(parts), axes) if axes else sum(parts) for axes, parts in squares.items()))
