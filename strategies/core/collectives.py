"""Gather and reduce-scatter along mesh axes, each the transpose of the other.

Where the transport's reduce-scatter is wrong (backends/transport.py), it is an all-to-all, and each device sums its
parts. The byte count is unchanged.
"""

import jax
from jax import lax
from jaxtyping import Array

from strategies.backends.transport import reduce_scatters_wrongly

Axes = str | tuple[str, ...]


def all_gather(part: Array, axes: Axes, dim: int) -> Array:
    """The parts of all devices along `axes`, joined along a dim; varying over the axes."""
    if reduce_scatters_wrongly():
        return _gather(part, axes, dim)
    return lax.all_gather(part, axes, axis=dim, tiled=True)


def reduce_scatter(x: Array, axes: Axes, dim: int) -> Array:
    """This device's part, along a dim, of the sum of an array over the devices along `axes`."""
    if reduce_scatters_wrongly():
        return _scatter(x, axes, dim)
    return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)


def _gathered(part: Array, axes: Axes, dim: int) -> Array:
    return lax.all_gather(part, axes, axis=dim, tiled=True)


def _scattered(x: Array, axes: Axes, dim: int) -> Array:
    parts = lax.all_to_all(x, axes, dim, dim, tiled=True)  # of each device, one after another
    count = lax.axis_size(axes)
    return parts.reshape(*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]).sum(dim)


# The forward passes call no custom derivative: policies of rematerialisation know a gather by its primitive.
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
