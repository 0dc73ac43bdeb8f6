"""Parts of arrays on devices: gathered, scattered and cut inside `jax.shard_map`, as the table of weights says.

A part of None is that of a weight that stays whole.
"""

from typing import Literal

from jax import lax
from jaxtyping import Array

from strategies.config import ReduceDtype
from strategies.core.collectives import all_gather, reduce_scatter
from strategies.core.table import Part
from strategies.model.weights import WeightSpec


def gather(array: Array, part: Part | None, to: Literal["varying", "invarying"] = "varying") -> Array:
    """W[D_axis,F] -> W[D,F]. `to` is the type of the result in `jax.shard_map`: varying over the axes, or not."""
    if part is None:
        return array
    if to == "varying":
        return all_gather(array, part.axes, part.dim)
    return lax.all_gather(array, part.axes, axis=part.dim, tiled=True, to=to)


def scatter(grad: Array, part: Part | None, spec: WeightSpec, dtype: ReduceDtype) -> Array:
    """dW[D,F] of each device -> this device's part dW[D_axis,F] of their sum, in float32.

    It is summed in `dtype`, or in the dtype that this weight has instead (`WeightSpec.summed_dtype`).
    """
    if part is None:
        return grad.astype("float32")
    return reduce_scatter(grad.astype(spec.summed_dtype(dtype)), part.axes, part.dim).astype("float32")


def own_part(array: Array, part: Part | None) -> Array:
    """W[D,F] -> W[D_axis,F], the part of this device."""
    if part is None:
        return array
    size = array.shape[part.dim] // lax.axis_size(part.axes)
    return lax.dynamic_slice_in_dim(array, lax.axis_index(part.axes) * size, size, part.dim)
