"""The attribution of a step's time to compute, communication, bubbles, recomputation, the optimizer and dispatch."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.cases.case import Case, Options
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.program.compiled import read_program
from benchmarks.run.attribution import attribute, attributed, relative, variants
from benchmarks.run.compilation import compile_step
from benchmarks.run.corpus import read_corpus
from benchmarks.run.measure import BlockTimes, Training
from benchmarks.run.references import begin_training
from strategies import GPTConfig, MeshSpec, Step
from tests.strategies import quick
from tests.strategies.sampling import nightly

CONFIG = GPTConfig(layers=2, embed=16, heads=2, vocab=256, sequence=16)
SINGLE = Case("single", MeshSpec.parse("data=1"), "tiny", CONFIG, 4, 1, "float32", "none")
SECONDS = 0.1


def test_parts_are_differences() -> None:
    """Each part is the difference between a variant and the one without that part, and the parts add up to the step."""
    parts = attributed(
        {
            "step": 100,
            "synchronized": 80,
            "aligned": 74,
            "isolated": 71,
            "gradients": 61,
            "no remat": 52,
            "optimizer": 11,
            "empty": 1,
        }
    )
    assert parts == {
        "attribution.compute_seconds": 51,
        "attribution.exposed_communication_seconds": 20,
        "attribution.schedule_bubble_seconds": 6,
        "attribution.lockstep_bubble_seconds": 3,
        "attribution.recomputation_seconds": 9,
        "attribution.optimizer_seconds": 10,
        "attribution.dispatch_seconds": 1,
        "attribution.total_over_step": 1,
    }


def test_what_has_no_variant_takes_no_time() -> None:
    """Parts without a variant are zero: one device has no communication, and no remat no recomputation."""
    parts = attributed({"step": 100, "gradients": 90, "optimizer": 11, "empty": 1})
    assert list(parts.values()) == [89, 0, 0, 0, 0, 10, 1, 1]


def test_keeping_that_is_slower_leaves_nothing_to_gain() -> None:
    """If recomputing is faster than keeping activations, recomputation takes no time and all of it is compute."""
    parts = attributed({"step": 100, "gradients": 90, "no remat": 95, "optimizer": 11, "empty": 1})
    assert (parts["attribution.compute_seconds"], parts["attribution.recomputation_seconds"]) == (89, 0)


@pytest.mark.parametrize(
    ("backend", "dispatched", "optimizer", "empty"),
    [("gpu", 0.3, 0.375, 0), ("gpu", 1.9, 0.25, 0.25), ("cpu", 0.3, 0.25, 0.25)],
)
def test_hidden_dispatch_takes_no_time(
    monkeypatch: pytest.MonkeyPatch, backend: str, dispatched: float, optimizer: float, empty: float
) -> None:
    """Accelerators run a step while the next is dispatched, unless that takes most of a step. On CPUs both take cores.

    What is too short to hide its own dispatch is what the gradients leave of the step without communication.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    times = {
        "step": BlockTimes(1, seconds=[2.0, 4.0, 2.0], dispatch_seconds=[dispatched] * 3),
        "isolated": BlockTimes(1, seconds=[1.75, 3.5, 1.75]),
        "gradients": BlockTimes(1, seconds=[1.0, 2.0, 1.0]),
        "optimizer": BlockTimes(1, seconds=[0.5, 1.0, 0.5], dispatch_seconds=[0.5, 1.0, 0.5]),
        "empty": BlockTimes(1, seconds=[0.5, 1.0, 0.5], dispatch_seconds=[0.5, 1.0, 0.5]),
    }
    ratios = {"step": 1, "isolated": 0.875, "gradients": 0.5, "optimizer": optimizer, "empty": empty}
    assert relative(times) == ratios


@pytest.mark.parametrize(("strategy", "options"), [("zero1", ()), ("data", (("compression", "onebit"),))])
def test_halves_of_another_layout_than_the_weights_send_nothing(strategy: str, options: Options) -> None:
    """The gradient and the optimizer half send nothing, also where gradients are laid out differently from weights."""
    case = replace(SINGLE, strategy=strategy, mesh=MeshSpec.parse("data=4"), options=options)
    step, found = case.build(), variants(case)
    for name in ("gradients", "optimizer"):
        lowered = jax.jit(found[name], donate_argnums=0).lower(step.state, step.batch)
        assert read_program(quick.compiled(lowered).as_text() or "", step.mesh.shape).sent_bytes == 0


@pytest.mark.parametrize("source", ["the strategy", "the user"])
def test_variants_have_the_compiler_options_of_the_step(source: str) -> None:
    """Variants are compiled with the step's compiler options; here one that XLA refuses."""
    step, unknown = SINGLE.build(), {"xla_no_such": "1"}
    training = Training(step.update, None, [None])  # the first variant is refused before any step
    case = replace(SINGLE, compiler_options=tuple(unknown.items())) if source == "the user" else SINGLE
    step = replace(step, xla_options=unknown) if source == "the strategy" else step
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such"):
        attribute(case, step, training, 1.0, MIN_ROUNDS, lambda: None)


def sleeping(function: Callable[..., Any]) -> Any:
    """A jitted function that takes `SECONDS` longer on one device."""

    def sleep(x: np.ndarray) -> np.ndarray:
        time.sleep(SECONDS)
        return x

    def slow(*inputs: Any) -> Any:
        first, *others = jax.tree.leaves(inputs)
        first = jax.pure_callback(sleep, first, first)
        return function(*jax.tree.unflatten(jax.tree.structure(inputs), [first, *others]))

    return jax.jit(slow)


def test_variants_keep_master_weights() -> None:
    """A variant of a step with master weights returns a state with the shapes and dtypes of the one it takes."""
    options: Options = (("master", "float32"),)
    case = replace(SINGLE, strategy="zero1", mesh=MeshSpec.parse("data=2"), dtype="bfloat16", options=options)
    step = case.build()
    expected = jax.tree.map(lambda array: (array.shape, array.dtype), step.state)
    for name, update in variants(case).items():
        state, _ = jax.eval_shape(update, step.state, step.batch)
        assert jax.tree.map(lambda array: (array.shape, array.dtype), state) == expected, name


@pytest.mark.usefixtures("_short_blocks")  # the slow half takes longer, and the others hardly anything
@pytest.mark.parametrize(("half", "part"), [("gradients", "compute_seconds"), *nightly(("apply", "optimizer_seconds"))])
def test_time_is_attributed_to_the_slow_half(monkeypatch: pytest.MonkeyPatch, half: str, part: str) -> None:
    """If one half of a step sleeps, the step's time is attributed to that half."""

    def build(case: Case, build: Callable[..., Step] = Case.build, **training: Any) -> Step:
        step = build(case, **training)
        halves = {"gradients": step.gradients, "apply": step.apply}
        halves[half] = sleeping(halves[half])

        def update(state: Any, batch: Any) -> Any:
            _, grads = halves["gradients"](state, batch)
            return halves["apply"](state, grads)

        return replace(step, update=jax.jit(update, donate_argnums=0), **halves)

    monkeypatch.setattr(Case, "build", build)
    step = SINGLE.build()
    training = begin_training(step, compile_step(step)[0], step.init, read_corpus(None, CONFIG))
    began: list[None] = []
    parts = attribute(SINGLE, step, training, 1.0, MIN_ROUNDS, lambda: began.append(None))
    total = parts["attribution.total_over_step"]
    assert parts[f"attribution.{part}"] == pytest.approx(total, rel=0.4)
    assert total == pytest.approx(1, rel=0.4)
    assert len(began) == 3 + 4 * MIN_ROUNDS, "before each of three is compiled, and each of four has its turn"
