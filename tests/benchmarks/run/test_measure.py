"""Timing blocks of steps."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.run.measure import BLOCK_SECONDS, Training, steps_per_block
from benchmarks.run.program import forget_effects


def training(seconds: float, batches: tuple[Any, ...] = ("batch",)) -> Training:
    """A training run whose steps last so long; its state counts them."""

    def program(state: int, batch: Any) -> tuple[int, dict[str, Any]]:
        time.sleep(seconds)
        return state + 1, {"loss": np.float32(state), "grad_norm": np.float32(0), "batch": batch}

    return Training(program, 0, batches)


def test_steps_are_chained_and_batches_given_in_turn() -> None:
    """Each step takes the state of the one before it and the next batch, starting over after the last batch."""
    run = training(0.0, batches=("first", "second"))
    run.block(3)
    assert run.state == 3
    assert run.metrics["batch"] == "first"


@pytest.mark.parametrize("seconds", [0.001, 0.1])
def test_block_is_long_enough_to_be_timed(seconds: float) -> None:
    """A block has as many steps as fill `BLOCK_SECONDS`, and one if a single step does."""

    class Steady:
        """Its steps all take the same time."""

        dispatch_seconds = 0.0

        def block(self, steps: int) -> float:
            return steps * seconds

    steps = steps_per_block(Steady())
    assert steps * seconds >= BLOCK_SECONDS
    assert steps == 1 or (steps - 1) * seconds < 2 * BLOCK_SECONDS


@pytest.mark.parametrize(
    ("backend", "share", "steps"),
    [("gpu", 0.045, 5), ("gpu", 0.005, 1), ("gpu", 0.3, 10), ("gpu", 0.7, 1), ("cpu", 0.045, 1)],
)
def test_a_block_hides_dispatch_on_accelerators(
    monkeypatch: pytest.MonkeyPatch, backend: str, share: float, steps: int
) -> None:
    """The dispatch of its first step is at most 1% of a block, where ten steps suffice for that.

    Where most of a step is dispatch, no number of steps hides it.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    class Dispatched:
        """Each of its steps of 0.2 seconds spends a share on its dispatch."""

        dispatch_seconds = 0.0

        def block(self, steps: int) -> float:
            self.dispatch_seconds = share * 0.2 * steps
            return 0.2 * steps

    assert steps_per_block(Dispatched()) == steps


@pytest.fixture
def wait() -> Callable[[Any], Any]:
    """A compiled function that takes much longer than its dispatch."""
    x = jnp.ones((500, 500))
    return jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y @ x / 500, x)).lower(x).compile()


def test_dispatch_is_the_part_before_the_wait(wait: Callable[[Any], Any]) -> None:
    """Dispatch time is positive and no more than the block's time."""
    run = Training(lambda state, _: (wait(state), {}), jnp.ones((500, 500)), [None])
    seconds = run.block(2)
    assert 0 < run.dispatch_seconds <= seconds


def test_block_waits_for_its_last_step(wait: Callable[[Any], Any]) -> None:
    """When a block ends, its last step has finished."""
    run = Training(lambda state, _: (wait(state), {}), jnp.ones((500, 500)), [None])
    run.block(2)
    assert run.state.is_ready()


def test_what_a_failed_callback_leaves_is_forgotten() -> None:
    """After a failed callback JAX's pending tokens are dropped, so the error is not raised again at exit."""
    from jax._src.dispatch import runtime_tokens, wait_for_tokens

    def fail() -> None:
        raise ValueError("no such file")

    token = cast(Any, SimpleNamespace(block_until_ready=fail))
    runtime_tokens.set_output_runtime_token(jax.devices()[0], token)
    with pytest.raises(ValueError, match="no such file"):
        wait_for_tokens()
    forget_effects()
    wait_for_tokens()
