"""Replicated KV heads, for a tensor axis with more devices than the model has KV heads.

With J KV heads on n devices each KV head is held by n/J neighbouring devices, each with some of the query heads that
attend to it. So devices hold the weights of a model with n KV heads (`GPTConfig.copied`). Replicas start equal and stay
equal, because each takes the sum of all their gradients. The global norm counts a head once.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from strategies.core.plan import Plan
from strategies.model.attention.qkv import copied
from strategies.model.gpt import map_weights, spec_tree
from strategies.model.layers import after
from strategies.model.weights import Weights, WeightSpec

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
