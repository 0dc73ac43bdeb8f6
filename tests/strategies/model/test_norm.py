"""RMSNorm: its hand-written derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies.model.parts import rms_scaled
from tests.strategies.equality import ROUNDOFF

EPSILON = 1e-6
FEATURES = 16
TOKENS = 6
OPERATIONS = 12
"""One after another, each of which rounds sums of at most `FEATURES` terms (see equality.py)."""


def plain(x, scale):
    """As Llama is written in Hugging Face's transformers, without a derivative of its own."""
    x_float = x.astype(jnp.float32)
    normed = x_float * jax.lax.rsqrt(jnp.square(x_float).mean(-1, keepdims=True) + EPSILON)
    return (normed.astype(x.dtype) * scale).astype(x.dtype)


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2**-24), ("bfloat16", ROUNDOFF["bfloat16"])])
@pytest.mark.parametrize("shape", [(FEATURES,), (3, 2, FEATURES)], ids=str)
def test_derivative_is_that_of_autodiff(dtype, unit, shape):
    """Values and gradients of x and of the scale, whether all features share scales or each head has its own."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(key, (TOKENS, *shape)).astype(dtype) for key in keys[:2])
    scale = 1 + 0.1 * jax.random.normal(keys[2], shape)
    (value, backward), (other, plain_backward) = (
        jax.vjp(function, x, scale) for function in (lambda x, scale: rms_scaled(x, scale, EPSILON), plain)
    )
    np.testing.assert_array_equal(value, other)
    for found, expected in zip(backward(dy), plain_backward(dy), strict=True):
        found, expected = (np.asarray(array, np.float64) for array in (found, expected))
        bound = OPERATIONS * np.sqrt(FEATURES) * unit
        assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)
