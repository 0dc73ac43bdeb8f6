"""Collectives along mesh axes, with their transposes: gather and reduce-scatter, and all-to-alls of rows.

Where the transport's reduce-scatter has a bug (backends/backend.py), an all-to-all replaces it, and each device sums
its parts. The byte count is unchanged.
"""

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from strategies.backends.backend import reduce_scatters_wrongly

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


class Parts(NamedTuple):
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


def parts_of(mine_n2: Int[Array, "n 2"], theirs_n2: Int[Array, "n 2"], section: int, axis: str) -> tuple[Parts, Parts]:
    """The parts that devices along an axis send each other, and the parts that they send back.

    Args:
        mine_n2: (rows for each device, where they begin).
        theirs_n2: `all_to_all` of `mine_n2`: what the other devices have for this one.
        section: distance in rows between where one device's rows arrive and where the next one's do.
    """
    (counts_n, starts_n), (arriving_n, theirs_n) = mine_n2.T, theirs_n2.T
    sections_n = section * jnp.arange(len(mine_n2))
    mine_n = jnp.zeros_like(counts_n) + section * lax.axis_index(axis)
    return Parts(starts_n, counts_n, mine_n, arriving_n), Parts(sections_n, arriving_n, theirs_n, counts_n)


def exchange_parts(rows_RX: Float[Array, "R X"], there: Parts, back: Parts, rows: int, axis: str) -> Array:
    """Send parts of rows of any size. Of the `rows` returned, those that nothing arrives in are zero.

    The transpose sends the parts back. JAX's own transpose would also exchange the offsets, which are known here.
    """
    return cast(Array, _exchange_parts(rows_RX, there, back, (rows, len(rows_RX)), axis))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _exchange_parts(rows_RX: Array, there: Parts, back: Parts, rows: tuple[int, int], axis: str) -> Array:
    empty_RX = jnp.zeros_like(rows_RX, shape=(rows[0], rows_RX.shape[1]))
    return lax.ragged_all_to_all(rows_RX, empty_RX, *there, axis_name=axis)


_exchange_parts.defvjp(
    lambda rows_RX, there, back, rows, axis: (_exchange_parts(rows_RX, there, back, rows, axis), (there, back)),
    lambda rows, axis, ways, drows_RX: (_exchange_parts(drows_RX, *ways[::-1], rows[::-1], axis), None, None),
)
