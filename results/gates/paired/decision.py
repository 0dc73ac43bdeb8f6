"""What launches say of two checkouts: from the times of blocks to a word, by pure functions."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from results.records.launches import MIN_LAUNCHES, Change, Word

Side = Literal["base", "head", "canary"]


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


def change_between(launches: Sequence[Launch], ours: Side, theirs: Side) -> Change:
    """Of one side against another."""
    return Change.of([log_ratio(getattr(launch, ours), getattr(launch, theirs)) for launch in launches])


def judge(launches: Sequence[Launch], effect: float) -> Word:
    """What some launches say of HEAD by themselves.

    Slower: its mean exceeds the least effect that matters, and it is slower with 95% confidence, than BASE and than
    BASE run once more. On a machine so noisy that BASE differs from itself by as much, the last does not hold.
    Faster: the mirror image. The same: both bounds lie within the effect. Fewer than three launches say nothing.
    """
    if len(launches) < MIN_LAUNCHES:
        return "inconclusive"
    to_canary = change_between(launches, "head", "canary")
    word = change_between(launches, "head", "base").word(effect)
    confirmed = {"slower": to_canary.low > 0, "faster": to_canary.high < 0}
    return word if confirmed.get(word, True) else "inconclusive"


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
