"""How steps are timed."""

import time
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.failures import CompileError, Recompiled
from benchmarks.measure import BLOCK_SECONDS, Training, compile_step, no_compilation, steps_per_block
from strategies import Step


def training(seconds: float, batches: tuple[Any, ...] = ("batch",)) -> Training:
    """A run whose steps last so long; its state counts them."""

    def program(state: int, batch: Any) -> tuple[int, dict[str, Any]]:
        time.sleep(seconds)
        return state + 1, {"loss": np.float32(state), "grad_norm": np.float32(0), "batch": batch}

    return Training(program, 0, batches)


def test_steps_are_chained_and_batches_given_in_turn() -> None:
    """Each step trains the state that the one before it left, on the next batch, and all over again at the end."""
    run = training(0.0, batches=("first", "second"))
    run.block(3)
    assert run.state == 3
    assert run.metrics["batch"] == "first"


def test_trajectory_has_a_number_for_each_step() -> None:
    """Looking at the first steps misses none of them."""
    assert training(0.0).trajectory(3).losses == (0.0, 1.0, 2.0)


@pytest.mark.parametrize("seconds", [0.001, 0.1])
def test_block_is_long_enough_to_be_timed(seconds: float) -> None:
    """A block has as many steps as fill its least time, and one where a step alone does."""
    run = training(seconds)
    steps = steps_per_block(run)
    assert run.block(steps) >= BLOCK_SECONDS
    assert steps == 1 or (steps - 1) * seconds < 2 * BLOCK_SECONDS


class Uncompilable:
    """A step on which a pass of the compiler fails, unless it is left out and that `helps`."""

    def __init__(self, message: str, *, helps: bool = True) -> None:
        self.message, self.helps, self.told = message, helps, []

    def lower(self) -> "Uncompilable":
        """Itself."""
        return self

    def compile(self, options: dict[str, Any]) -> str:
        """What comes of it."""
        self.told.append(options)
        if self.helps and "while-loop-all-reduce-code-motion" in options.get("xla_disable_hlo_passes", ""):
            return "program"
        raise RuntimeError(self.message)


FAULT = "INTERNAL: RET_CHECK failure (xla/service/while_loop_all_reduce_code_motion.cc:1125)"


def test_a_pass_that_fails_is_left_out() -> None:
    """Besides those that the user leaves out, and among the options that say how the program was made."""
    made = compile_step(cast(Step, Uncompilable(FAULT)), {"xla_disable_hlo_passes": "cse", "xla_a": "1"})
    assert made.program == "program"
    assert made.options == {"xla_disable_hlo_passes": "cse,while-loop-all-reduce-code-motion", "xla_a": "1"}


def test_any_other_failure_is_the_compilers() -> None:
    """It is not asked again: it would say the same."""
    step = Uncompilable("INTERNAL: RET_CHECK failure (xla/service/another.cc:1)")
    with pytest.raises(CompileError, match=r"another\.cc"):
        compile_step(cast(Step, step), {"xla_a": "1"})
    assert step.told == [{"xla_a": "1"}]


def test_a_failure_without_the_pass_is_told() -> None:
    """Should the fault be another's after all."""
    step = Uncompilable(FAULT, helps=False)
    with pytest.raises(CompileError, match="code_motion"):
        compile_step(cast(Step, step))
    assert len(step.told) == 2


@pytest.fixture
def wait() -> Callable[[Any], Any]:
    """A compiled function that takes a while, long after its dispatch."""
    x = jnp.ones((500, 500))
    return jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y @ x / 500, x)).lower(x).compile()


def test_dispatch_is_the_part_before_the_wait(wait: Callable[[Any], Any]) -> None:
    """Steps are handed over in less time than they take, and the block takes both."""
    run = Training(lambda state, _: (wait(state), {}), jnp.ones((500, 500)), [None])
    seconds = run.block(2)
    assert 0 < run.dispatch_seconds <= seconds


def test_block_waits_for_its_last_step(wait: Callable[[Any], Any]) -> None:
    """When the clock stops nothing is under way: the time is the steps', not the time to ask for them."""
    run = Training(lambda state, _: (wait(state), {}), jnp.ones((500, 500)), [None])
    run.block(2)
    assert run.state.is_ready()


def test_compilation_is_caught() -> None:
    """What is compiled while it is timed ends the timing, and is named."""
    message = r"compiled while it was timed: .*<lambda>.*; a step must be compiled once"
    with pytest.raises(Recompiled, match=message), no_compilation():
        jax.jit(lambda x: x + 1)(jnp.zeros(3))


def test_compiled_program_is_not_caught() -> None:
    """Calling what is compiled, or compiling when nobody watches, is no offence."""
    x = jnp.zeros(7)
    program = jax.jit(lambda x: x * 3).lower(x).compile()
    with no_compilation():
        assert program(x).shape == (7,)
    assert jax.jit(lambda x: x * 5)(x).shape == (7,)
