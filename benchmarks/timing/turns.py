"""Fair timing: steps that are compared take turns, block by block, in random order, so that drift hits all alike."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.arguments import MIN_ROUNDS
from benchmarks.cluster import processes
from benchmarks.timing.measure import Timed, no_compilation


@dataclass
class Turns:
    """What one of several steps that took turns has shown; entries of equal index are of the same round.

    Attributes:
        seconds: of a step, one for each block.
        dispatch_seconds: of these, until the step was handed to the devices.
        error: what ended its turns early.
    """

    steps_per_block: int
    seconds: list[float] = field(default_factory=list)
    dispatch_seconds: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def steps(self) -> int:
        """How many were timed."""
        return self.steps_per_block * len(self.seconds)

    def take(self, training: Timed) -> None:
        """Time one block.

        Raises:
            Recompiled: something was compiled meanwhile.
        """

        def block() -> float:
            with no_compilation():
                return training.block(self.steps_per_block)

        self.seconds.append(processes.of_first(block) / self.steps_per_block)
        self.dispatch_seconds.append(training.dispatch_seconds / self.steps_per_block)


def take_turns(
    trainings: Mapping[str, Timed],
    turns: Mapping[str, Turns],
    rounds: int,
    begin: Callable[[str], None],
) -> None:
    """Time blocks in rounds, each round in another random order.

    `turns` is filled as it goes on, so that what was timed is not lost with an interrupt. A step that fails takes no
    more turns, and the others go on; of several processes it must fail in all, or those that wait for another hang.
    `begin` is told whose turn it is.
    """
    seed = processes.of_first(lambda: random.getrandbits(32))  # another in each run, and the same in all its processes
    order, shuffle = list(trainings), random.Random(seed).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            begin(name)
            try:
                turns[name].take(trainings[name])
            except Exception as error:
                turns[name].error = error
        order = [name for name in order if turns[name].error is None]


@dataclass(frozen=True)
class Interval:
    """The median of what was measured, and an interval that has the true median inside with 95% confidence."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval | None":
        """None of fewer than `MIN_ROUNDS`.

        The interval is that of the quantile test of scipy: it lies between two order statistics and assumes no
        distribution (Conover 1999, "Practical Nonparametric Statistics", section 3.2); with fewer values there is none.
        It is of this process alone: another launch may differ by more, and `results.regress paired` compares launches.
        """
        if len(values) < MIN_ROUNDS:
            return None
        from scipy.stats import quantile_test  # it takes longer to load than JAX: not before there is a row

        interval = quantile_test(values, p=0.5).confidence_interval(confidence_level=0.95)
        return cls(statistics.median(values), float(interval.low), float(interval.high))

    @classmethod
    def of_ratios(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Interval | None":
        """One step's time over another's, of blocks of the same round."""
        return cls.of([our / their for our, their in zip(ours, theirs, strict=False)])
