"""Gradient sums over microbatches, devices and replicated KV heads, the global norm, and the weights to differentiate.

A tensor axis may have more devices than the model has KV heads. With J KV heads on n devices each KV head is held by
n/J neighbouring devices, each with some of the query heads that attend to it. So devices hold the weights of a model
with n KV heads (`GPTConfig.copied`). Replicas start equal and stay equal, because each takes the sum of all their
gradients. The global norm counts a head once.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from strategies.backends.device_mesh import mark_varying
from strategies.core.axis import Axis
from strategies.core.placement import Placed, ShardedDim
from strategies.core.plan import Plan
from strategies.core.shards import gather, scatter
from strategies.model.attention.qkv import copied
from strategies.model.gpt import map_weights, spec_tree
from strategies.model.layers import after
from strategies.model.weights import Weights, WeightSpec, is_partial, partial_sum, scaled, sum_partial, zeros_like
from strategies.step import LossTerms, Tokens

Arrays = TypeVar("Arrays", Weights, list[Array])
LossAndGrads = Callable[[Weights, Tokens], tuple[LossTerms, Weights]]


def sum_remaining(
    loss: LossTerms, grads: Weights, plan: Plan, sum_replicas: Callable[[Weights], Weights] | None = None
) -> tuple[LossTerms, Weights]:
    """Sum over devices what no hook has summed: the loss, and gradients as the table of weights says.

    Gradients of weights that were gathered for the whole step are scattered. Partial gradients of replicated weights
    (`Axis.partial_gradient`) and gradients of replicated KV heads are added. Gradients of weights that are updated in
    parts are scattered. All are then summed over replicas by `sum_replicas` (default: `all_reduce`). With
    `reduce="layer"` the backward loop has done this for the blocks, except for partial gradients (layer_reduction.py).

    The loss and gradients are this device's, after all microbatches.
    """
    split = *plan.placement.batch, *plan.placement.tokens
    loss = lax.psum(loss, split) if split else loss
    if plan.gathered > 1:
        grads = _scattered(grads, plan, lambda placed: placed.stored_shard)
    for axis in plan.active:
        grads = _sum_parts(grads, axis, plan)
    remaining, summed = split_summed_in_loop(grads, plan)
    remaining = sum_copies(remaining, plan)
    if not plan.placement.reduce_scatter_per_microbatch:
        remaining = scatter_updates(remaining, plan)
    if any(weight.summed for weight in plan.weights.values()):
        remaining = (sum_replicas or partial(all_reduce, plan=plan))(remaining)
    return loss, {**remaining, **summed}


def split_summed_in_loop(weights: Weights, plan: Plan) -> tuple[Weights, Weights]:
    """Weights whose gradients are summed after the backward pass, and those whose gradients are summed in its loop."""
    in_loop = {"blocks": weights["blocks"]} if plan.train.reduce == "layer" else {}
    return {name: part for name, part in weights.items() if name not in in_loop}, in_loop


def scatter_updates(grads: Weights, plan: Plan) -> Weights:
    """This device's parts of the gradient sums, if devices update parts of weights (ZeRO stages 1 and 2)."""
    return _scattered(grads, plan, lambda placed: placed.update_shard) if plan.placement.updates else grads


def _scattered(grads: Weights, plan: Plan, part_of: Callable[[Placed], ShardedDim | None]) -> Weights:
    def scattered(grad: Array, spec: WeightSpec) -> Array:
        return scatter(grad, part_of(plan.placed(spec.dims)), spec, plan.train.reduce_dtype)

    return map_weights(scattered, plan.config, grads)


def _sum_parts(grads: Weights, axis: Axis, plan: Plan) -> Weights:
    """Sum partial gradients of replicated weights along an axis."""

    def total(grad: Array, spec: WeightSpec) -> Array:
        if not axis.partial_gradient(plan, spec):
            return grad
        return lax.psum(grad.astype(spec.summed_dtype(plan.train.reduce_dtype)), axis.name).astype("float32")

    return map_weights(total, plan.config, grads)


def all_reduce(grads: Weights, plan: Plan) -> Weights:
    """Sum each gradient over the replicas of its weight, in `reduce_dtype`; float32 results."""
    specs: list[WeightSpec] = jax.tree.leaves({part: spec_tree(plan.config)[part] for part in grads})
    leaves, structure = jax.tree.flatten(grads)
    return jax.tree.unflatten(structure, all_reduce_listed(leaves, specs, plan))


def all_reduce_listed(grads: Sequence[Array], specs: Sequence[WeightSpec], plan: Plan) -> list[Array]:
    """`all_reduce` of a list of gradients, with one call per set of replicas."""
    axes = [plan.placed(spec.dims).summed for spec in specs]
    sums = [
        grad.astype(spec.summed_dtype(plan.train.reduce_dtype)) if over else grad
        for grad, over, spec in zip(grads, axes, specs, strict=True)
    ]
    for group in dict.fromkeys(filter(None, axes)):
        chosen = [i for i, each in enumerate(axes) if each == group]
        for i, total in zip(chosen, lax.psum([sums[i] for i in chosen], group), strict=True):
            sums[i] = total
    return cast(sums, "float32")


def prepare_weights(weights: Weights, plan: Plan, *, evaluated: bool = False) -> Weights:
    """Stored weights -> the weights to differentiate, or of a forward pass alone (`evaluated`).

    They are marked as varying over the axes over which gradients are summed later (`mark_varying`). With
    `gather="step"` they are gathered here.
    """

    def one(weight: Array, spec: WeightSpec) -> Array:
        placed = plan.placed(spec.dims)
        if evaluated or not plan.sums_in_loop(spec):  # else layer_reduction.py marks them
            weight = mark_shares(weight, placed)
        if plan.gathered > 1:
            weight = gather(weight.astype(spec.used_dtype(plan.train.dtype)), placed.stored_shard)
        parts = partial_axes(plan, spec)
        return mark_varying(weight, parts) if parts else weight

    return map_weights(one, plan.config, weights)


def partial_axes(plan: Plan, spec: WeightSpec) -> tuple[str, ...]:
    """Mesh axes along which each device has only a part of a replicated weight's gradient."""
    return tuple(axis.name for axis in plan.active if axis.partial_gradient(plan, spec))


def mark_shares(weight: Array, placed: Placed) -> Array:
    """Mark a weight as varying over the axes along which it is replicated, or updated in parts."""
    axes = *placed.summed, *(placed.update_shard.axes if placed.update_shard else ())
    return mark_varying(weight, axes) if axes else weight


def cast(arrays: Arrays, dtype: str) -> Arrays:
    """Cast all arrays to a dtype."""
    return jax.tree.map(lambda x: x.astype(dtype), arrays)


def microbatched(tokens_BS: Tokens, microbatches: int) -> Tokens:
    """[B,S] -> [M,b,S]: every M-th sequence, so each device has a shard of every microbatch if the compiler
    splits B.
    """
    return tokens_BS.reshape(-1, microbatches, tokens_BS.shape[-1]).swapaxes(0, 1)


def total_of_microbatches(function: Callable[[Tokens], Array], tokens_BS: Tokens, microbatches: int) -> Array:
    """Sum of a function over the microbatches of a batch, run in sequence."""
    if microbatches == 1:
        return function(tokens_BS)
    return lax.map(function, microbatched(tokens_BS, microbatches)).sum(0)


def accumulated(loss_and_grads: LossAndGrads, microbatches: int) -> LossAndGrads:
    """Accumulate loss and gradients in float32 over microbatches, run in sequence."""
    if microbatches == 1:
        return loss_and_grads

    def accumulate(params: Weights, tokens_BS: Tokens) -> tuple[LossTerms, Weights]:
        def add(total: Any, tokens_bS: Tokens) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, loss_and_grads(params, tokens_bS)), None

        tokens_MbS = microbatched(tokens_BS, microbatches)
        shapes = jax.eval_shape(loss_and_grads, params, tokens_MbS[0])  # and the axes over which they vary
        zeros = jax.tree.map(partial(zeros_like, dtype=jnp.float32), shapes)
        return lax.scan(add, zeros, tokens_MbS)[0]

    return accumulate


def global_norm(grads: Weights, specs: Weights) -> Float[Array, ""]:
    """Norm of all gradients of the model.

    Squares are summed on each device, then over the axes that split each weight, then over weights. The sums for the
    leading dense layers come first, and all others wait for them: otherwise these could run during the backward loop
    over those layers, and virtual devices would deadlock (benchmarks/program/deadlock.py).
    """
    squares: defaultdict[tuple[str, ...], list[Array]] = defaultdict(list)
    for part in sorted(grads, key=lambda part: (part != "lead", part)):
        for grad, spec in zip(jax.tree.leaves(grads[part]), jax.tree.leaves(specs[part]), strict=True):
            axes = tuple(sorted(axis for axis in jax.tree.leaves(tuple(spec)) if axis))
            squares[axes].append(partial_sum(jnp.square(grad)))

    sums: list[Array] = []
    for axes, parts in squares.items():
        local: Any = reduce(jnp.add, parts)
        if sums and "lead" in grads:
            local = scaled(local, 1 + 0 * sums[-1]) if is_partial(local) else after(sums[-1], local)
        # A partial sum has a type that says so only with explicit axes.
        sums.append(sum_partial(local) if is_partial(local) or not axes else lax.psum(local, axes))
    total: Any = sum(sums)
    return jnp.sqrt(total)


KEYS = {"qkv": 2, "qk": 1}
"""How many rows of a weight's dim, counted from the end, belong to keys and values. The others belong to queries."""


def with_copies(weights: Weights, plan: Plan) -> Weights:
    """The model's weights -> the weights with replicated KV heads, as all devices together hold them."""

    def copy(weight: Array, keys: int) -> Array:
        return copied(weight, plan.config.head_dim, plan.key_copies, keys)

    return _map_copied(copy, weights, plan)


def counted_once(grads: Weights, plan: Plan) -> Weights:
    """Gradients whose sum of squares over all devices counts each KV head once."""

    def scale(dw: Array, keys: int) -> Array:
        rows = jnp.arange(dw.shape[-2])[:, None]
        return dw * jnp.where(rows < dw.shape[-2] - keys, 1, plan.key_copies**-0.5)

    return _map_copied(scale, grads, plan)


def sum_copies(grads: Weights, plan: Plan) -> Weights:
    """Sum gradients over the replicas of each KV head, in groups of devices along `tensor`."""
    leaves, structure = jax.tree.flatten(grads)
    specs = spec_tree(plan.config)
    summed = sum_listed_copies(leaves, jax.tree.leaves({part: specs[part] for part in grads}), plan)
    return jax.tree.unflatten(structure, summed)


def sum_listed_copies(grads: Sequence[Array], specs: Sequence[WeightSpec], plan: Plan) -> list[Array]:
    """Sum a list of weights' gradients over the replicas of each KV head.

    Gradients that vary over the same mesh axes are sent together. So on pipeline stages gradients of leading dense
    layers, which are equal on all stages, are not sent with those of the blocks.
    """
    if plan.key_copies == 1:
        return [*grads]
    rows = {i: grads[i][..., -KEYS[spec.dims[-2]] :, :] for i, spec in enumerate(specs) if _has_heads(spec)}
    varying = {i: jax.typeof(own).manual_axis_type.varying for i, own in rows.items()}
    summed, total = [*grads], None
    for axes in sorted({*varying.values()}, key=len):  # an array that waits for another also varies over its axes
        chosen = [i for i in rows if varying[i] == axes]
        sent = jnp.concatenate([rows[i].reshape(-1) for i in chosen]).astype(plan.train.reduce_dtype)
        total = _sum_of_copies(sent if total is None else after(total, sent), plan)
        for i, part in zip(chosen, jnp.split(total, np.cumsum([rows[i].size for i in chosen])[:-1]), strict=True):
            others = grads[i][..., : -rows[i].shape[-2], :]
            summed[i] = jnp.concatenate([others, part.reshape(rows[i].shape)], -2)
    return summed


def _sum_of_copies(sent: Array, plan: Plan) -> Array:
    """Sum an array over groups of devices along `tensor`, in float32. A sum in groups has no type in shard_map."""
    size, copies = lax.axis_size("tensor"), plan.key_copies
    groups = [[*range(first, first + copies)] for first in range(0, size, copies)]
    return lax.all_gather(sent, "tensor", axis_index_groups=groups).astype("float32").sum(0)


def sum_whole_copies(grads: Weights, plan: Plan) -> Weights:
    """Sum gradients over the replicas of each KV head in whole arrays, which the compiler partitions."""

    def add(dw: Array, keys: int) -> Array:
        own = dw[..., -keys:, :]
        by_copy = own.reshape(*own.shape[:-1], -1, plan.key_copies, plan.config.head_dim)
        total = jnp.broadcast_to(by_copy.sum(-2, keepdims=True), by_copy.shape).reshape(own.shape)
        return jnp.concatenate([dw[..., :-keys, :], total], -2)

    return _map_copied(add, grads, plan)


def copied_elements(plan: Plan) -> int:
    """Elements of replicated KV heads on a device, in all weights; 0 without replicas."""
    if plan.key_copies == 1:
        return 0
    rows, weights = plan.held_config.dim_sizes, [weight for weight in plan.weights.values() if _has_heads(weight.spec)]
    early = plan.placement.reduce_scatter_per_microbatch  # gradients are then scattered before this sum
    held = ((each.updated_elements if early else each.elements, each.spec.dims[-2]) for each in weights)
    return sum(elements // rows[dim] * KEYS[dim] for elements, dim in held)


def _has_heads(spec: WeightSpec) -> bool:
    return spec.dims[-1] == "key_features"


def _map_copied(function: Callable[[Array, int], Array | None], weights: Weights, plan: Plan) -> Weights:
    if plan.key_copies == 1:
        return weights

    def apply(weight: Array, spec: WeightSpec) -> Array | None:
        return function(weight, KEYS[spec.dims[-2]]) if _has_heads(spec) else weight

    return map_weights(apply, plan.config, weights)
