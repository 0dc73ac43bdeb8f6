"""Collectives along mesh axes, and the gathers, scatters and slices of weights that the table of weights asks for.

Where the transport's reduce-scatter has a bug (backends/backend.py), an all-to-all replaces it, and each device sums
its parts. The byte count is unchanged.

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
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from strategies.backends.backend import reduce_scatters_wrongly
from strategies.config import ReduceDtype, TrainConfig
from strategies.core.placement import ShardedDim
from strategies.core.plan import Plan
from strategies.core.sizes import held_dtype
from strategies.gpt_config import GPTConfig
from strategies.model.gpt import map_weights
from strategies.model.weights import Weights, WeightSpec

Axes = str | tuple[str, ...]


def all_gather(part: Array, axes: Axes, dim: int) -> Array:
    """Concatenate the parts of all devices along `axes`; the result varies over the axes."""
    if reduce_scatters_wrongly():
        return _gather(part, axes, dim)
    return lax.all_gather(part, axes, axis=dim, tiled=True)


def reduce_scatter(x: Array, axes: Axes, dim: int) -> Array:
    """This device's part, along a dim, of an array's sum over the devices along `axes`."""
    if reduce_scatters_wrongly():
        return _scatter(x, axes, dim)
    return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)


def _gathered(part: Array, axes: Axes, dim: int) -> Array:
    return lax.all_gather(part, axes, axis=dim, tiled=True)


def _scattered(x: Array, axes: Axes, dim: int) -> Array:
    parts = lax.all_to_all(x, axes, dim, dim, tiled=True)  # parts by device, concatenated
    count = lax.axis_size(axes)
    return parts.reshape(*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]).sum(dim)


# The forward passes call no custom derivative, because rematerialisation policies recognise a gather by its primitive.
_gather = jax.custom_vjp(_gathered, nondiff_argnums=(1, 2))
_gather.defvjp(
    lambda part, axes, dim: (_gathered(part, axes, dim), None),
    lambda axes, dim, _, grad: (_scattered(grad, axes, dim),),
)
_scatter = jax.custom_vjp(_scattered, nondiff_argnums=(1, 2))
_scatter.defvjp(
    lambda x, axes, dim: (_scattered(x, axes, dim), None),
    lambda axes, dim, _, grad: (_gathered(grad, axes, dim),),
)


def all_to_all(rows_RX: Float[Array, "R X"], axis: str) -> Float[Array, "R X"]:
    """Send the same number of rows to each device along an axis. It is its own transpose."""
    return lax.all_to_all(rows_RX, axis, 0, 0, tiled=True)


class RaggedSizes(NamedTuple):
    """Parts of rows for n devices, as `jax.lax.ragged_all_to_all` takes them.

    Attributes:
        starts_n: where the part for each device begins.
        counts_n: its rows.
        offsets_n: where it begins in the rows that the device receives.
        arriving_n: rows that come from each device.
    """

    starts_n: Int[Array, " n"]
    counts_n: Int[Array, " n"]
    offsets_n: Int[Array, " n"]
    arriving_n: Int[Array, " n"]


def parts_of(
    mine_n2: Int[Array, "n 2"], theirs_n2: Int[Array, "n 2"], section: int, axis: str
) -> tuple[RaggedSizes, RaggedSizes]:
    """The parts that devices along an axis send each other, and the parts that they send back.

    Args:
        mine_n2: (rows for each device, where they begin).
        theirs_n2: `all_to_all` of `mine_n2`: what the other devices have for this one.
        section: distance in rows between where one device's rows arrive and where the next one's do.
    """
    (counts_n, starts_n), (arriving_n, theirs_n) = mine_n2.T, theirs_n2.T
    sections_n = section * jnp.arange(len(mine_n2))
    mine_n = jnp.zeros_like(counts_n) + section * lax.axis_index(axis)
    return RaggedSizes(starts_n, counts_n, mine_n, arriving_n), RaggedSizes(sections_n, arriving_n, theirs_n, counts_n)


def exchange_parts(rows_RX: Float[Array, "R X"], there: RaggedSizes, back: RaggedSizes, rows: int, axis: str) -> Array:
    """Send parts of rows of any size. Of the `rows` returned, those that nothing arrives in are zero.

    The transpose sends the parts back. JAX's own transpose would also exchange the offsets, which are known here.
    """
    return cast(Array, _exchange_parts(rows_RX, there, back, (rows, len(rows_RX)), axis))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _exchange_parts(rows_RX: Array, there: RaggedSizes, back: RaggedSizes, rows: tuple[int, int], axis: str) -> Array:
    empty_RX = jnp.zeros_like(rows_RX, shape=(rows[0], rows_RX.shape[1]))
    return lax.ragged_all_to_all(rows_RX, empty_RX, *there, axis_name=axis)


_exchange_parts.defvjp(
    lambda rows_RX, there, back, rows, axis: (_exchange_parts(rows_RX, there, back, rows, axis), (there, back)),
    lambda rows, axis, ways, drows_RX: (_exchange_parts(drows_RX, *ways[::-1], rows[::-1], axis), None, None),
)


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
    is written, so the links stay busy (docs/experiments/2026-11-25-defaults-of-backends.md). Not if devices update
    layers of their own, with Muon.
    """
    stacked = (weight.update_shard for weight in plan.weights.values() if weight.spec.is_stacked)
    by_layer = any(shard and shard.dim == 0 for shard in stacked)
    if not plan.backend.gathers_outermost_only or by_layer:
        return map_weights(partial(_gather_update, plan), plan.config, parts)
    ends, blocks = {name: part for name, part in parts.items() if name != "blocks"}, {"blocks": parts["blocks"]}

    def layer(i: Array | int) -> Weights:
        def gathered(part: Array, spec: WeightSpec) -> Array:
            return _gather_update(plan, part[i], replace(spec, dims=spec.dims[1:]))

        return map_weights(gathered, plan.config, blocks)

    def put(new: Weights, i: Array | int, whole: Weights) -> Weights:
        return jax.tree.map(lambda one, all_LX: lax.dynamic_update_index_in_dim(all_LX, one, i, 0), new, whole)

    def gather_next(i: Array, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
        new, whole = carry
        return layer(i + 1), put(new, i, whole)

    last = len(jax.tree.leaves(blocks)[0]) - 1  # on this device: pipeline stages have fewer layers than the model
    new, whole = lax.fori_loop(0, last, gather_next, (layer(0), {"blocks": replaced["blocks"]}))
    return map_weights(partial(_gather_update, plan), plan.config, ends) | put(new, last, whole)


def _gather_update(plan: Plan, part: Any, spec: WeightSpec) -> Array:
    return gather(part, plan.placed(spec.dims).update_shard, to="invarying")


def held(weights: Weights, config: GPTConfig, train: TrainConfig) -> tuple[Weights, Weights | None]:
    """Float32 weights -> the same weights as `State.params` and `State.master` hold them."""
    if train.master == "none":
        return weights, None
    return map_weights(lambda weight, spec: weight.astype(held_dtype(spec, train)), config, weights), weights
