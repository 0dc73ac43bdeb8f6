"""Ordering of independent computations, which compilers preserve."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def after(earlier: Array, later: Any) -> Any:
    """Make a tree's floating-point arrays depend on `earlier`. Their values do not change if it is finite.

    `lax.optimization_barrier` is not enough: XLA's CPU backend of JAX 0.10 removes it before it merges equal
    computations. XLA cannot remove a product with 0, which may be NaN.
    """
    zero = 0 * earlier.reshape(-1)[0]
    return jax.tree.map(lambda x: x + zero.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x, later)
