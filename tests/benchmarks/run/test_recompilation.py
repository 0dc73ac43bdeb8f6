"""What is compiled while a step is timed."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.cases.failures import Recompiled
from benchmarks.run.compilation import no_compilation


def test_compilation_is_caught() -> None:
    """A compilation while timing raises Recompiled with the function's name."""
    message = r"compiled while it was timed: .*<lambda>.*; a step must be compiled once"
    with pytest.raises(Recompiled, match=message), no_compilation():
        jax.jit(lambda x: x + 1)(jnp.zeros(3))


def test_compiled_program_is_not_caught() -> None:
    """A call of a compiled program, or a compilation outside of timing, raises nothing."""
    x = jnp.zeros(7)
    program = jax.jit(lambda x: x * 3).lower(x).compile()
    with no_compilation():
        assert program(x).shape == (7,)
    assert jax.jit(lambda x: x * 5)(x).shape == (7,)
