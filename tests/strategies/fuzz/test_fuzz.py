"""Random compositions of model, strategy, mesh, options and backend: they train, or are refused with a way out.

A few seeds are traced every day, and fewer are run. `tox -e fuzz` goes on for `MESHMARK_FUZZ_SECONDS`, an hour by
default, with seeds from `MESHMARK_FUZZ_SEED` on, by default others each day. Then the check that precedes measurements
looks at `MESHMARK_FUZZ_CHECKS` steps, by default 1,000. A failure is shrunk, and printed as a call that repeats it:

    from tests.strategies.fuzz.composition import Composition, attempt
    attempt(Composition("three_d", "pipeline=2,tensor=2", {...}, {...}))

Compositions are drawn and shrunk by code of our own. Hypothesis draws them too unevenly: of 900, six had both a
pipeline and a tensor axis, where independent draws have a hundred.
"""

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator

import jax
import pytest

from strategies import GPTConfig, Infeasible, TrainConfig
from strategies.core.gradients import sum_remaining
from strategies.core.plan import Plan
from tests.strategies.fuzz import composition
from tests.strategies.fuzz import random_compositions as tables
from tests.strategies.fuzz.composition import (
    Composition,
    NoWayOut,
    assert_as_one_device,
    assert_no_alarm,
    attempt,
    built,
)
from tests.strategies.fuzz.random_compositions import draw
from tests.strategies.fuzz.shrinking import failure, shrink
from tests.strategies.sampling import nightly

SECONDS = int(os.environ.get("MESHMARK_FUZZ_SECONDS", "3600"))
SEED = int(os.environ.get("MESHMARK_FUZZ_SEED", int(time.time()) // 86_400 * 1_000_000))
CHECKS = int(os.environ.get("MESHMARK_FUZZ_CHECKS", "1000"))
EVERY = 10
"""At night every tenth seed is also run."""
SMALL = {"layers": 2, "embed": 8, "heads": 1, "vocab": 64, "sequence": 16}
FOUND = [
    Composition("data", "data=2", {**SMALL, "experts": 4, "dense_layers": 1}, {"batch_size": 2, "bucket_bytes": 4096}),
    Composition(
        "three_d",
        "pipeline=2,tensor=2",
        {**SMALL, "layers": 4, "heads": 2},
        {"batch_size": 4, "microbatches": 4, "schedule": "dualpipe-v", "sequence_parallel": False},
    ),
]
"""Compositions that failed once."""


def report(check, seed):
    """The kind of failure of a seed, and the smallest composition that fails alike; empty if it does not fail."""
    if not (kind := failure(check, draw(seed))):
        return ""
    smallest = shrink(draw(seed), lambda smaller: failure(check, smaller) == kind)
    return f"seed {seed}: {kind}: {check.__name__}({smallest})"


@pytest.mark.parametrize("seed", [*range(16), *nightly(*range(16, 32))])
def test_a_random_composition_is_traced_or_refused(seed):
    """It builds, traces, and takes the arguments that formulas say; or it is refused, with a way out."""
    assert report(attempt, seed) == ""


@pytest.mark.parametrize("once", FOUND, ids=str)
def test_what_failed_once_traces(once):
    """Compositions that the fuzzer has found do not fail again."""
    assert built(once)
    attempt(once)


@pytest.mark.parametrize("seed", [20, *nightly(74)])
def test_a_random_composition_computes_what_one_device_computes(seed):
    """In float32, to the bounds of equality.py."""
    with draw(seed).known():
        assert built(draw(seed))
    assert report(assert_as_one_device, seed) == ""


def sound(first: int) -> Iterator[int]:
    """Seeds of exact steps that are not refused, which are in float32 and in the dtype that is drawn in turns."""
    for seed in itertools.count(first):
        with contextlib.suppress(NoWayOut), in_turn(seed).known():
            step = built(in_turn(seed))
            if step and not step.inexact:
                yield seed


def in_turn(seed: int) -> Composition:
    """The composition of a seed on CPU devices: that of an even seed in float32."""
    drawn = dataclasses.replace(draw(seed), backend="cpu")
    return drawn if seed % 2 else drawn.in_float32()


@pytest.mark.parametrize("seed", [3, *nightly(11, 40000129)])  # the last: rounding turns choices of experts
def test_the_check_raises_no_alarm(seed):
    """It accepts a random step that is sound."""
    assert failure(assert_no_alarm, in_turn(seed)) == ""


@pytest.mark.fuzz
def test_the_check_raises_no_alarm_on_a_thousand_random_steps():
    """It accepts all of them."""
    print(f"MESHMARK_FUZZ_SEED={SEED}")
    alarms = {}
    for number, seed in enumerate(itertools.islice(sound(SEED), CHECKS), start=1):
        try:
            assert_no_alarm(in_turn(seed))
        except Exception as alarm:
            alarms[seed] = f"{in_turn(seed)}: {type(alarm).__name__}: {alarm}"
        print(f"{number}: seed {seed}: {alarms.get(seed, 'equal')}", flush=True)
        if number % 20 == 0:
            jax.clear_caches()
    assert not alarms, "\n".join(alarms.values())


@pytest.mark.fuzz
def test_random_compositions_for_an_hour():
    """None of them fails. Each kind of failure is reported once, by the smallest composition that fails alike."""
    print(f"MESHMARK_FUZZ_SEED={SEED}")
    reports, end = {}, time.monotonic() + SECONDS
    for seed in itertools.count(SEED):
        for check in (attempt, assert_as_one_device) if seed % EVERY == 0 else (attempt,):
            kind = failure(check, draw(seed))
            if kind and kind not in reports:
                reports[kind] = report(check, seed)
        if seed % 100 == 99:
            jax.clear_caches()
        if time.monotonic() > end:
            break
    assert not reports, "\n".join(reports.values())


def test_a_planted_fault_is_found_and_shrunk(monkeypatch):
    """An error where windows meet pipeline stages is found, and shrunk to these two."""

    def planted(plan, **_):
        if plan.staged and plan.config.attention_window:
            raise IndexError
        return "xla"

    monkeypatch.setattr(Plan, "kernel", planted)
    monkeypatch.setattr(composition, "trace", lambda step: None)
    seed = next(seed for seed in itertools.count() if failure(attempt, draw(seed)))
    smallest = shrink(draw(seed), lambda smaller: failure(attempt, smaller).startswith("IndexError"))
    assert (smallest.mesh, smallest.train) == ("pipeline=2", {"batch_size": 1, "microbatches": 1})
    assert smallest.model == {**SMALL, "attention_window": smallest.model["attention_window"]}


def test_few_compositions_are_refused():
    """Formulas accept at least every third composition, so that a run is about steps and not about refusals."""
    assert sum(map(is_predicted, map(draw, range(99)))) >= 33


def is_predicted(drawn):
    """Whether formulas accept a composition."""
    with drawn.known(), contextlib.suppress(Infeasible):
        return bool(drawn.predict())
    return False


def test_every_field_is_drawn():
    """A new field of the model or of the options is drawn, or named among those that are not."""
    drawn = tables.OF_ALL, tables.OF_AXES, tables.MODEL, tables.OF_EXPERTS, tables.OF_SIGMOIDS
    fields = {each.name for config in (GPTConfig, TrainConfig) for each in dataclasses.fields(config)}
    assert fields == {*itertools.chain(*drawn), *tables.OTHERS, *tables.NUMBERS}


@pytest.mark.fuzz
def test_a_planted_gradient_is_found(monkeypatch):
    """Runs find a gradient of one norm that is halved: the sum of a replicated weight over half of the devices."""
    drawn = Composition("replicas+tensor", "data=2,tensor=2", {**SMALL, "heads": 2}, {"batch_size": 2})
    assert_as_one_device(drawn)
    axis = composition.AXES["tensor"]

    def planted(plan):
        def reduce(loss, grads):
            loss, grads = sum_remaining(loss, grads, plan)
            scale = grads["blocks"]["norm1"]["scale_D"]
            grads["blocks"]["norm1"]["scale_D"] = scale / 2
            return loss, grads

        return dataclasses.replace(axis.implement(plan), reduce=reduce)

    monkeypatch.setitem(composition.AXES, "tensor", dataclasses.replace(axis, implement=planted))
    with pytest.raises(AssertionError):
        assert_as_one_device(drawn)
