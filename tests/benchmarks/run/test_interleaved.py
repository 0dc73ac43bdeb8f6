"""Interleaved timing, and the intervals of ratios that are computed from its rounds."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import quantile_test

from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.run.measure import BlockTimes, Interval, Training, time_interleaved


def training(work: Callable[[int], object]) -> Training:
    """A training run whose state counts its steps; `work` gets the count."""

    def program(state: int, _: None) -> tuple[int, dict[str, Any]]:
        work(state)
        return state + 1, {}

    return Training(program, 0, [None])


def race(*works: Callable[[int], object], steps: int = 5) -> tuple[list[BlockTimes], list[str]]:
    """Time some runs interleaved; their turns, and the order in which they took them."""
    trainings = {str(number): training(work) for number, work in enumerate(works)}
    turns, order = {name: BlockTimes(steps) for name in trainings}, list[str]()
    time_interleaved(trainings, turns, MIN_ROUNDS, order.append)
    return list(turns.values()), order


def test_every_round_has_all_of_them_in_another_order() -> None:
    """Every round has one block of each run, in an order that varies."""
    _, order = race(*[lambda _: None] * 4)
    rounds = [tuple(order[i : i + 4]) for i in range(0, len(order), 4)]
    assert len(rounds) == MIN_ROUNDS
    assert all(sorted(turn) == ["0", "1", "2", "3"] for turn in rounds)
    assert len(set(rounds)) > 1


class Steady:
    """A run whose steps all take the same time, by its own clock, so load on the machine changes nothing."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds, self.dispatch_seconds = step_seconds, 0.0

    def block(self, steps: int) -> float:
        """Seconds of this many steps, a tenth of them in dispatch."""
        self.dispatch_seconds = steps * self.step_seconds / 10
        return steps * self.step_seconds


def test_samples_are_seconds_per_step() -> None:
    """There is one sample for each block: its time divided by its steps, and so for dispatch."""
    turns = {"0": BlockTimes(5)}
    time_interleaved({"0": Steady(0.5)}, turns, MIN_ROUNDS, lambda name: None)
    assert turns["0"].seconds == [0.5] * MIN_ROUNDS
    assert turns["0"].dispatch_seconds == pytest.approx([0.05] * MIN_ROUNDS)
    assert turns["0"].steps == 5 * MIN_ROUNDS


def test_each_takes_as_many_turns_as_are_asked_for() -> None:
    """Every run has as many samples as rounds, however long its steps take."""
    turns = {"0": BlockTimes(5), "1": BlockTimes(2)}
    time_interleaved({"0": Steady(0.5), "1": Steady(125.0)}, turns, 20, lambda name: None)
    assert [len(turn.seconds) for turn in turns.values()] == [20, 20]


def test_a_run_that_fails_is_timed_no_more() -> None:
    """A run that fails keeps its error and is timed no more; the others go on."""

    def fail(step: int) -> None:
        if step == 7:
            raise ZeroDivisionError("step 7")

    (failed, good), order = race(fail, lambda _: None)
    assert isinstance(failed.error, ZeroDivisionError)
    assert (len(failed.seconds), order.count("0")) == (1, 2)
    assert (good.error, len(good.seconds)) == (None, MIN_ROUNDS)


def test_interrupt_leaves_what_was_timed() -> None:
    """Ctrl-C keeps the samples of the blocks before it."""

    def stop(step: int) -> None:
        if step == 12:
            raise KeyboardInterrupt

    turns = {"0": BlockTimes(5)}
    with pytest.raises(KeyboardInterrupt):
        time_interleaved({"0": training(stop)}, turns, MIN_ROUNDS, lambda name: None)
    assert len(turns["0"].seconds) == 2


@given(st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=50))
def test_drift_cancels_in_pairs(drift: list[float]) -> None:
    """Drift of the machine's speed between rounds cancels in the ratio of pairs."""
    ratio = Interval.of_ratios([2 * speed for speed in drift], drift)
    assert ratio is not None
    assert ratio.low == ratio.median == ratio.high == pytest.approx(2)


def test_interval_encloses_the_median_as_often_as_it_says() -> None:
    """The 95% interval holds the true median in at least 93.5% of 1,000 samples of skewed noise, at any sample size.

    93.5% is two standard deviations of that count below 95%.
    """
    draw = random.Random(0)
    for pairs in (6, 9, 20, 60):
        hits = 0
        for _ in range(1000):
            ratio = Interval.of_ratios([draw.lognormvariate(0, 0.3) for _ in range(pairs)], [1.0] * pairs)
            assert ratio is not None
            hits += ratio.low <= 1 <= ratio.high
        assert hits >= 935  # two standard deviations below 95%


@pytest.mark.parametrize("pairs", range(6, 100))
def test_interval_is_that_of_the_quantile_test(pairs: int) -> None:
    """Both ends are those of scipy's quantile test for the median."""
    draw = random.Random(pairs)
    values = [draw.random() for _ in range(pairs)]
    expected = quantile_test(values, p=0.5).confidence_interval(confidence_level=0.95)
    found = Interval.of(values)
    assert found is not None
    assert (found.low, found.high) == (expected.low, expected.high)


def test_too_few_pairs_give_no_interval() -> None:
    """Fewer than six pairs give no interval."""
    assert Interval.of_ratios([1.0] * 5, [1.0] * 6) is None
    assert Interval.of_ratios([1.0] * 6, [1.0] * 6) == Interval(1.0, 1.0, 1.0)
