"""Gather, scatter and slice arrays inside `jax.shard_map`, as the table of weights says.

A part of None means that the weight stays whole. In ZeRO stages 1 and 2 each device updates its parts of weights, then
all devices gather them.

With `TrainConfig.master="float32"` the state has master weights (Micikevicius et al. 2018, "Mixed Precision Training",
section 3.1), split as in Rajbhandari et al. 2020, "ZeRO", section 5.1:

    master       State.params            State.master               gathered after the update
    "none"       W[D,F] in float32       -                          W[D_data,F] in float32
    "float32"    W[D,F] in `dtype`       W[D_data,F] in float32     W[D_data,F] in `dtype`

The forward pass casts float32 weights to `dtype` anyway, so with master weights it computes with the same numbers. The
two gradients of a tied table are summed in `dtype`. Vectors (norm weights and biases) are used in float32
(model/weights.py), and therefore held and gathered in float32.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
from jax import lax
from jaxtyping import Array

from strategies.config import ReduceDtype, TrainConfig
from strategies.core.collectives import all_gather, reduce_scatter
from strategies.core.placement import ShardedDim
from strategies.core.plan import Plan
from strategies.core.sizes import held_dtype
from strategies.gpt_config import GPTConfig
from strategies.model.gpt import map_weights
from strategies.model.weights import Weights, WeightSpec


def gather(array: Array, part: ShardedDim | None, to: Literal["varying", "invarying"] = "varying") -> Array:
    """W[D_axis,F] -> W[D,F]. `to` is the result's type in `jax.shard_map`: varying over the axes, or not."""
    if part is None:
        return array
    if to == "varying":
        return all_gather(array, part.axes, part.dim)
    return lax.all_gather(array, part.axes, axis=part.dim, tiled=True, to=to)


def scatter(grad: Array, part: ShardedDim | None, spec: WeightSpec, dtype: ReduceDtype) -> Array:
    """dW[D,F] of each device -> this device's dW[D_axis,F] of their sum in `dtype` (or the weight's own), as
    float32.
    """
    if part is None:
        return grad.astype("float32")
    return reduce_scatter(grad.astype(spec.summed_dtype(dtype)), part.axes, part.dim).astype("float32")


def own_part(array: Array, part: ShardedDim | None) -> Array:
    """W[D,F] -> W[D_axis,F], this device's part."""
    if part is None:
        return array
    size = array.shape[part.dim] // lax.axis_size(part.axes)
    return lax.dynamic_slice_in_dim(array, lax.axis_index(part.axes) * size, size, part.dim)


def own_parts(weights: Weights, plan: Plan) -> Weights:
    """This device's parts of the weights, for the update."""
    return map_weights(lambda weight, spec: own_part(weight, plan.placed(spec.dims).update_shard), plan.config, weights)


def gather_updated(parts: Weights, replaced: Weights, plan: Plan) -> Weights:
    """Gather updated weights; they replace the old ones in memory.

    Where the transport joins parts only along the outermost dim, XLA gathers a matrix of all layers into a temporary in
    another layout, and transposes it. There layers are gathered one by one: a layer is gathered while the previous one
    is written, so the links stay busy (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    if not plan.backend.gathers_outermost_only:
        return map_weights(partial(_gathered, plan), plan.config, parts)
    ends, blocks = {name: part for name, part in parts.items() if name != "blocks"}, {"blocks": parts["blocks"]}

    def layer(i: Array | int) -> Weights:
        def gathered(part: Array, spec: WeightSpec) -> Array:
            return _gathered(plan, part[i], replace(spec, dims=spec.dims[1:]))

        return map_weights(gathered, plan.config, blocks)

    def put(new: Weights, i: Array | int, whole: Weights) -> Weights:
        return jax.tree.map(lambda one, all_LX: lax.dynamic_update_index_in_dim(all_LX, one, i, 0), new, whole)

    def gather_next(i: Array, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
        new, whole = carry
        return layer(i + 1), put(new, i, whole)

    last = len(jax.tree.leaves(blocks)[0]) - 1  # on this device: pipeline stages have fewer layers than the model
    new, whole = lax.fori_loop(0, last, gather_next, (layer(0), {"blocks": replaced["blocks"]}))
    return map_weights(partial(_gathered, plan), plan.config, ends) | put(new, last, whole)


def _gathered(plan: Plan, part: Any, spec: WeightSpec) -> Array:
    return gather(part, plan.placed(spec.dims).update_shard, to="invarying")


def held(weights: Weights, config: GPTConfig, train: TrainConfig) -> tuple[Weights, Weights | None]:
    """Float32 weights -> the same weights as `State.params` and `State.master` hold them."""
    if train.master == "none":
        return weights, None
    return map_weights(lambda weight, spec: weight.astype(held_dtype(spec, train)), config, weights), weights
