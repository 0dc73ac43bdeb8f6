"""Rounds beyond those that were asked for."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.run.measure import BlockTimes
from benchmarks.run.record import Record
from benchmarks.run.timing_group import CANARY, TimingGroup, paired
from tests.benchmarks.run.engines import DATA, PLAN, SINGLE

QUIET, NOISY = "quiet", str(DATA)


class Planned:
    """A run whose blocks take the given seconds, in turn, by its own clock."""

    dispatch_seconds = 0.0

    def __init__(self, *seconds: float) -> None:
        self.seconds: Iterator[float] = cycle(seconds)

    def block(self, steps: int) -> float:
        """The next of the seconds."""
        return next(self.seconds)


def times_of(trainings: dict[str, Planned], extra_seconds: float) -> dict[str, BlockTimes]:
    """Times of the steps of a group, whose baseline is `SINGLE`."""
    record = Record.begin(SINGLE)
    states = cast(Any, SimpleNamespace(settings=replace(PLAN, extra_seconds=extra_seconds)))
    group = TimingGroup(states, cast(Any, None), [record], record, None)
    group.trainings = cast(Any, trainings)
    group.times = {name: BlockTimes(1) for name in group.trainings}
    group._time(lambda name: None)
    return group.times


def timed(extra_seconds: float) -> dict[str, int]:
    """Blocks of each step of a group in which one step is noisy."""
    steps = {str(SINGLE): Planned(1.0), QUIET: Planned(2.0), NOISY: Planned(1.0, 2.0), CANARY: Planned(1.0)}
    return {name: len(times.seconds) for name, times in times_of(steps, extra_seconds).items()}


def test_only_wide_intervals_get_more_rounds() -> None:
    """While time is left, a step with a wide interval is timed further, beside the baseline and nothing else."""
    blocks = timed(extra_seconds=60.0)
    assert blocks[NOISY] == blocks[str(SINGLE)] > MIN_ROUNDS
    assert blocks[QUIET] == blocks[CANARY] == MIN_ROUNDS


@pytest.mark.parametrize("extra_seconds", [0.0, 1e-9])
def test_no_step_gets_fewer_rounds_than_asked_for(extra_seconds: float) -> None:
    """Without time for more, every step has exactly the rounds that were asked for."""
    assert set(timed(extra_seconds).values()) == {MIN_ROUNDS}


def test_intervals_that_got_more_rounds_hold_the_true_ratio_in_95_of_100_runs() -> None:
    """Simulated: log-normal block times, 1,500 runs. Two standard errors of their share are 1.1%.

    Intervals that end as soon as they are narrow hold the ratio in 92% of such runs.
    """
    random = np.random.default_rng(0)
    held, further = 0, 0
    for _ in range(1500):
        noisy = Planned(*np.exp(0.06 * random.standard_normal(400)))
        times = times_of({str(SINGLE): Planned(1.0), NOISY: noisy}, extra_seconds=60.0)
        ratio = paired(times, NOISY, str(SINGLE))
        assert ratio
        held += ratio.low <= 1 <= ratio.high
        further += len(times[NOISY].seconds) > MIN_ROUNDS
    assert held / 1500 >= 0.95 - 0.011
    assert further > 1000
