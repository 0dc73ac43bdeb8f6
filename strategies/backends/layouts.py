"""Fixes of memory layouts that a compiler would choose badly."""

from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array


def row_major(x: Array) -> Array:
    """Fix the layout of a residual that is read from a buffer, for NVIDIA GPUs.

    Otherwise XLA (of JAX 0.10) chooses the consumer's layout, and transposes the whole buffer in every pass
    (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    layout = Layout(tuple(range(x.ndim)))
    return lax.platform_dependent(x, cuda=lambda x: with_layout_constraint(x, layout), default=lambda x: x)
