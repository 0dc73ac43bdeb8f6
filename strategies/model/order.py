"""An order between computations that do not depend on each other, which compilers keep."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def after(earlier: Array, later: Any) -> Any:
    """Make the floating-point arrays of a tree depend on another array. Their values do not change if it is finite.

    `lax.optimization_barrier` does not suffice: XLA's CPU backend of JAX 0.10 removes it before it merges equal
    computations. XLA cannot remove a product with 0, which may be NaN.
    """
    zero = 0 * earlier.reshape(-1)[0]
    return jax.tree.map(lambda x: x + zero.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x, later)
