"""Compiled steps, initial states that all steps of a run start from, and the clock of a run."""

import re
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CompileError, Recompiled
from benchmarks.run.compilation import Clock, InitialStates, compilations, compile_step, no_compilation
from strategies import PRESETS, MeshSpec, Step
from strategies.checking import initial_state
from tests.benchmarks.run.engines import CONFIG, SINGLE
from tests.strategies.sampling import nightly

KEY = jax.random.key(0)
SPREAD = ("zero1", "data=2"), ("fsdp", "fsdp=4"), ("three_d", "pipeline=1,tensor=2"), ("auto", "fsdp=2,tensor=2")


def case_of(strategy: str, mesh: str, **options: Any) -> Case:
    """A case of the tests' model."""
    return Case(strategy, MeshSpec.parse(mesh), "tiny", CONFIG, 4, 1, "float32", "none", tuple(options.items()))


@pytest.mark.parametrize(("strategy", "mesh"), [*SPREAD[1:3], *nightly(SPREAD[0], SPREAD[3])])
def test_a_copied_state_is_the_one_that_a_step_initialises(strategy: str, mesh: str) -> None:
    """After the first case a state is copied, not computed, and has the values, noise too, and shardings of its own."""
    states, case = InitialStates(Clock()), case_of(strategy, mesh)
    step, single = case.build(), SINGLE.build()
    states.begin(SINGLE, single, KEY)
    with compilations() as compiled:
        state = states.begin(case, step, KEY)
    assert not compiled
    own = initial_state(step)(KEY)
    assert [leaf.sharding for leaf in jax.tree.leaves(state)] == [leaf.sharding for leaf in jax.tree.leaves(own)]
    for copied, initialised in zip(jax.tree.leaves(state), jax.tree.leaves(own), strict=True):
        np.testing.assert_allclose(copied, initialised, rtol=1e-6, atol=1e-7)


def test_a_state_that_a_step_takes_leaves_the_copies_alone() -> None:
    """A step donates its state and overwrites it; the next case starts from the first state all the same."""
    states, case = InitialStates(Clock()), case_of("data", "data=2")
    step = case.build()
    first = jax.device_get(states.begin(case, step, KEY))
    for _ in range(2):
        state = states.begin(case, step, KEY)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), first)
        step(state, step.place(np.zeros(step.batch.shape, np.int32)))


def test_other_shapes_are_initialised_by_their_step() -> None:
    """A state with other arrays, as with compressed gradients, is not copied from one without them."""
    states = InitialStates(Clock())
    states.begin(SINGLE, SINGLE.build(), KEY)
    case = case_of("data", "data=2", compression="int8")
    step = case.build()
    state = states.begin(case, step, KEY)
    assert jax.tree.structure(state) == jax.tree.structure(step.state)


def test_each_model_of_a_run_has_its_states() -> None:
    """The same strategy on the same mesh initialises another model by another program."""
    states, case = InitialStates(Clock()), case_of("data", "data=2")
    other = replace(case, config=PRESETS["nano-moe"])
    for each in (case, other):
        step = each.build()
        assert jax.tree.structure(states.begin(each, step, KEY)) == jax.tree.structure(step.state)


@pytest.mark.usefixtures("toys")
def test_a_strategy_that_is_not_built_in_initialises_its_own_state() -> None:
    """Another strategy's state would hide that its own initialisation fails."""
    states = InitialStates(Clock())
    broken = replace(SINGLE, strategy="broken")
    states.begin(SINGLE, SINGLE.build(), KEY)
    with pytest.raises(ZeroDivisionError, match="no weights"):
        states.begin(broken, broken.build(), KEY)


@pytest.mark.parametrize("raised", [RuntimeError("INTERNAL: RET_CHECK failure"), SystemExit("3")])
def test_what_a_compiler_says_is_its_error(raised: BaseException) -> None:
    """Any error of the compiler is raised as CompileError, and so is a strategy's SystemExit while it is traced."""

    def refuse(options: dict[str, str]) -> None:
        raise raised

    devices = np.array([SimpleNamespace(platform="tpu")])
    mesh, lowered = SimpleNamespace(devices=devices), SimpleNamespace(compile=refuse)
    step = SimpleNamespace(mesh=mesh, lower=lambda: lowered, xla_options_with=dict)
    with pytest.raises(CompileError, match=f"{type(raised).__name__}: {raised}"):
        compile_step(cast(Step, step))


def test_phases_add_up_and_failures_count() -> None:
    """A phase's time is the sum over its uses, including those that raised an error."""
    clock = Clock()
    with clock.phase("compile"):
        time.sleep(0.01)
    with suppress(KeyError), clock.phase("compile"):
        time.sleep(0.01)
        raise KeyError
    assert 0.02 <= clock.seconds["compile"] <= time.perf_counter() - clock.start


def test_split_names_the_overhead() -> None:
    """The summary gives the time outside of all phases as `other`, with its share."""
    clock = Clock()
    clock.start -= 100
    clock.seconds |= {"compile": 60.0, "timed": 20.0}
    assert re.fullmatch(r"100 s: compile 60 s, timed 20 s, other 20 s \(20%\)", str(clock))


def test_a_running_phase_has_its_time() -> None:
    """It counts from the begin of the phase, and is 0 before and after it."""
    clock = Clock()
    assert clock.running_seconds("timed") == 0
    with clock.phase("timed"), clock.phase("compile"):
        time.sleep(0.01)
        assert 0.01 <= clock.running_seconds("timed") <= time.perf_counter() - clock.start
    assert clock.running_seconds("timed") == 0


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
