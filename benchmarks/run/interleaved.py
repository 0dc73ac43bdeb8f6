"""Interleaved timing: each round times one block of every step in random order, so drift affects all steps equally."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.cluster import processes
from benchmarks.run.measure import Timeable, no_compilation


@dataclass
class BlockTimes:
    """Times of one of several interleaved steps. Entries with the same index are from the same round.

    Attributes:
        steps_per_block: number of steps in each block.
        seconds: seconds per step, one entry per block.
        dispatch_seconds: seconds per step until it was dispatched.
        error: what ended its timing early.
    """

    steps_per_block: int
    seconds: list[float] = field(default_factory=list)
    dispatch_seconds: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def steps(self) -> int:
        """Number of timed steps."""
        return self.steps_per_block * len(self.seconds)

    def add_block(self, training: Timeable) -> None:
        """Time one block.

        Raises:
            Recompiled: something was compiled during the block.
        """

        def block() -> float:
            with no_compilation():
                return training.block(self.steps_per_block)

        self.seconds.append(processes.broadcast_first(block) / self.steps_per_block)
        self.dispatch_seconds.append(training.dispatch_seconds / self.steps_per_block)


def time_interleaved(
    trainings: Mapping[str, Timeable],
    times: Mapping[str, BlockTimes],
    rounds: int,
    begin: Callable[[str], None],
) -> None:
    """Time blocks in rounds. Each round has one block of every step, in a new random order.

    A step that fails is dropped and the others continue. In a multi-process run it must fail in all processes, because
    otherwise those that wait for another one hang.

    Args:
        trainings: the steps to time, by name.
        times: filled as timing proceeds, so that an interrupt loses nothing; one entry per training.
        rounds: number of rounds.
        begin: called with the name of the step before each of its blocks.
    """
    # Differs between runs, and is the same in all processes of a run.
    seed = processes.broadcast_first(lambda: random.getrandbits(32))
    order, shuffle = list(trainings), random.Random(seed).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            begin(name)
            try:
                times[name].add_block(trainings[name])
            except Exception as error:
                times[name].error = error
        order = [name for name in order if times[name].error is None]


WIDE = 0.03
"""Half width of an interval, as a part of the median, above which more rounds are worth their time."""


@dataclass(frozen=True)
class Interval:
    """A median with a 95% confidence interval.

    Attributes:
        median: of the sample.
        low, high: ends of an interval that contains the true median with 95% confidence.
    """

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width, as a part of the median."""
        return (self.high - self.low) / 2 / self.median

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval | None":
        """Interval of a sample; None for fewer than `MIN_ROUNDS` values.

        It lies between two order statistics and assumes no distribution: a value lies on either side of the median
        with equal probability (Conover 1999, "Practical Nonparametric Statistics", section 3.2). With fewer values
        there is none. It covers noise within this process only. Another launch may differ by more; `results.regress
        paired` compares launches.
        """
        if len(values) < MIN_ROUNDS:
            return None
        from scipy.special import bdtr  # `scipy.stats` takes longer to load than JAX

        ordered, count = sorted(values), len(values)
        # The smallest k for which P(at most k values are below the median) is at least 2.5%; above 0 by `MIN_ROUNDS`.
        below = next(k for k in range(count) if bdtr(k, count, 0.5) >= 0.025)
        return cls(statistics.median(values), float(ordered[below - 1]), float(ordered[count - below]))

    @classmethod
    def of_ratios(cls, numerators: Sequence[float], denominators: Sequence[float]) -> "Interval | None":
        """Interval of the ratio of two steps' times, from blocks of the same rounds."""
        return cls.of(
            [numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=False)]
        )
