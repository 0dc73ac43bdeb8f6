"""What launches say of two checkouts: from the times of blocks to a word, by pure functions.

The launch is the sampling unit. Blocks of one launch share its processes and its moment and are like one another (their
autocorrelation reaches 0.85), so that sixty of them are no sixty samples.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

MIN_LAUNCHES = 3
CONFIDENCE = 0.95

Side = Literal["base", "head", "canary"]
Word = Literal["slower", "inconclusive", "faster", "same"]


class Launch(NamedTuple):
    """Seconds of a step in each block of one launch; entries of equal index are of the same round.

    The canary is BASE once more, in a process of its own: what it differs by is noise.
    """

    base: Sequence[float]
    head: Sequence[float]
    canary: Sequence[float]


def log_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of log(ours / theirs).

    Blocks of a round follow one another at once and share what slows the machine. What slows one block alone comes in
    bursts, hence the median: over simulated launches with such bursts it spread 12 to 30% less than the mean, and
    means trimmed by 10 or 25% did no better.

    >>> log_ratio([2.0, 2.0, 90.0], [1.0, 1.0, 1.0]) == math.log(2)
    True
    """
    return statistics.median(math.log(our / their) for our, their in zip(ours, theirs, strict=True))


@dataclass(frozen=True)
class Change:
    """How much longer something takes, over launches: the mean of logarithms of ratios, and a bound on either side."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, log_ratios: Sequence[float]) -> "Change":
        """With one-sided 95% bounds by Student's t (1908, "The probable error of a mean"), for launches are few.

        A single launch has no bounds.
        """
        mean, count = statistics.fmean(log_ratios), len(log_ratios)
        if count < 2:
            return cls(mean, -math.inf, math.inf)
        from scipy.stats import t as student  # it takes seconds to load: not for a help

        margin = float(student.ppf(CONFIDENCE, count - 1)) * statistics.stdev(log_ratios) / math.sqrt(count)
        return cls(mean, mean - margin, mean + margin)

    @classmethod
    def between(cls, launches: Sequence[Launch], ours: Side, theirs: Side) -> "Change":
        """Of one side against another."""
        return cls.of([log_ratio(getattr(launch, ours), getattr(launch, theirs)) for launch in launches])

    def __str__(self) -> str:
        """In percent.

        >>> print(Change(math.log(1.05), math.log(1.02), math.log(1.08)))
        +5.0% (+2.0% to +8.0%)
        """
        if math.isinf(self.low):
            return f"{math.expm1(self.mean):+.1%}"
        return f"{math.expm1(self.mean):+.1%} ({math.expm1(self.low):+.1%} to {math.expm1(self.high):+.1%})"


def judge(launches: Sequence[Launch], effect: float) -> Word:
    """What some launches say of HEAD by themselves.

    Slower: its mean exceeds the least effect that matters, and it is slower with 95% confidence, than BASE and than
    BASE run once more. On a machine so noisy that BASE differs from itself by as much, the last does not hold.
    Faster: the mirror image. The same: both bounds lie within the effect (two one-sided tests; Schuirmann 1987, "A
    comparison of the two one-sided tests procedure and the power approach"). Fewer than three launches say nothing.
    """
    if len(launches) < MIN_LAUNCHES:
        return "inconclusive"
    margin = math.log1p(effect)
    to_base, to_canary = Change.between(launches, "head", "base"), Change.between(launches, "head", "canary")
    if to_base.mean > margin and to_base.low > 0 and to_canary.low > 0:
        return "slower"
    if to_base.mean < -margin and to_base.high < 0 and to_canary.high < 0:
        return "faster"
    return "same" if -margin < to_base.low and to_base.high < margin else "inconclusive"


def settle(first: Sequence[Launch], fresh: Sequence[Launch], effect: float) -> Word:
    """What is said in the end, of first launches and of fresh ones that were made where the first did not say the same.

    An alarm of the first is but a suspicion, for it was looked for in many cases: it stands if the fresh launches, by
    themselves, say so again. And all together may show that nothing has changed. Of 1,000 simulated comparisons with 7
    launches, an effect of 5% and launches that spread by 4%, this called identical code slower or faster in none and
    the same in 96%, and a HEAD 10% slower was slower in 98% (tests/results/gates/paired/test_decision.py).
    """
    word = judge(first, effect)
    if word == "same" or word == judge(fresh, effect):
        return word
    return "same" if judge([*first, *fresh], effect) == "same" else "inconclusive"
