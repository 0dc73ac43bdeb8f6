"""Reuse of memory in a slot: values that weight gradients need overwrite consumed residuals."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp


def reuse(free: Mapping[int, Any], values: Sequence[Any]) -> list[int | None]:
    """For each value the key of the smallest free array that can hold it; None without one.

    An array can hold a value with the same number of elements if its dtype is the same or a wider float, and both vary
    over the same mesh axes. Arrays and values are types (`jax.typeof`). A value of None is skipped.

    >>> import jax
    >>> x, wide, hidden = (jax.typeof(jnp.zeros(*each)) for each in (((2, 4), "bfloat16"), ((2, 4),), ((2, 16),)))
    >>> reuse({0: wide, 3: x, 4: hidden}, [x, x, x])
    [3, 0, None]
    """
    left = dict(free)
    found: list[int | None] = []
    for value in values:
        able = [key for key, array in left.items() if value is not None and _can_hold(array, value)]
        found.append(min(able, key=lambda key: left[key].dtype.itemsize, default=None))
        left = {key: array for key, array in left.items() if key != found[-1]}
    return found


def _can_hold(array: Any, value: Any) -> bool:
    wide_enough = jnp.promote_types(array.dtype, value.dtype) == array.dtype
    exact = wide_enough and jnp.issubdtype(array.dtype, jnp.inexact) == jnp.issubdtype(value.dtype, jnp.inexact)
    return exact and array.size == value.size and array.manual_axis_type == value.manual_axis_type
