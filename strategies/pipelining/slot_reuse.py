"""Reuse of memory in a slot: values that wait for gradients of weights take the place of residuals that are used up."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


def reuse(free: Mapping[int, Any], values: Sequence[Any]) -> list[int | None]:
    """For each value the key of the smallest free array that can hold it; None if there is none.

    Values take their turn by size, the largest first. An array can hold a value of no more elements exactly, if its
    dtype is the same or a wider float, and both vary over the same mesh axes. A type is an array or describes one.

    >>> x, dx, hidden = (jnp.zeros(shape, "bfloat16") for shape in ((2, 4), 8, (2, 16)))
    >>> reuse({0: jnp.zeros((2, 4)), 3: x, 4: hidden}, [dx, dx, dx, dx])
    [3, 0, 4, None]
    """
    left = dict(free)
    found: list[int | None] = [None] * len(values)
    for i in sorted(range(len(values)), key=lambda i: -values[i].size):
        able = [key for key, array in left.items() if _can_hold(array, values[i])]
        if able:
            found[i] = min(able, key=lambda key: left[key].size * left[key].dtype.itemsize)
            del left[found[i]]
    return found


def _can_hold(array: Any, value: Any) -> bool:
    wide_enough = jnp.promote_types(array.dtype, value.dtype) == array.dtype
    exact = wide_enough and jnp.issubdtype(array.dtype, jnp.inexact) == jnp.issubdtype(value.dtype, jnp.inexact)
    return exact and array.size >= value.size and array.manual_axis_type == value.manual_axis_type


def pack(value: Array, like: Any) -> Array:
    """A value as the array that is to hold it."""
    flat = value.astype(like.dtype).reshape(-1)
    return jnp.pad(flat, (0, like.size - flat.size)).reshape(like.shape)


def unpack(array: Array, like: Any) -> Array:
    """The value of an array that holds it."""
    return array.reshape(-1)[: like.size].reshape(like.shape).astype(like.dtype)
