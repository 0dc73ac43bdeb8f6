"""The decision of the paired gate: pure functions from block times to slower, faster, same or inconclusive."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from results.records.launches import MIN_LAUNCHES, Change, Word

Side = Literal["base", "head", "canary"]


class Launch(NamedTuple):
    """Step times in seconds, one per block of a launch. Entries of equal index are from the same round.

    The canary is a second process that runs BASE. Its difference from BASE is noise.
    """

    base: Sequence[float]
    head: Sequence[float]
    canary: Sequence[float]


def log_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of log(ours / theirs).

    The blocks of a round run back to back, so a slow machine affects all of them. Slowdowns that affect a single block
    come in bursts, hence the median: over simulated launches with such bursts it spread 12 to 30% less than the mean,
    and means trimmed by 10 or 25% did no better.

    >>> log_ratio([2.0, 2.0, 90.0], [1.0, 1.0, 1.0]) == math.log(2)
    True
    """
    return statistics.median(math.log(our / their) for our, their in zip(ours, theirs, strict=True))


def change_between(launches: Sequence[Launch], ours: Side, theirs: Side) -> Change:
    """Return the change from `theirs` to `ours`, estimated from one log ratio per launch."""
    return Change.of([log_ratio(getattr(launch, ours), getattr(launch, theirs)) for launch in launches])


def judge(launches: Sequence[Launch], effect: float) -> Word:
    """Judge HEAD by these launches alone.

    - slower: the mean change exceeds the minimum effect, and HEAD is slower with 95% confidence than both BASE and the
      canary. The comparison with the canary fails on a machine so noisy that BASE differs from itself by as much.
    - faster: the same conditions in the other direction.
    - same: both bounds of the 95% interval lie within the minimum effect.
    - inconclusive: anything else, and any result of fewer than three launches.
    """
    if len(launches) < MIN_LAUNCHES:
        return "inconclusive"
    to_canary = change_between(launches, "head", "canary")
    word = change_between(launches, "head", "base").word(effect)
    confirmed = {"slower": to_canary.low > 0, "faster": to_canary.high < 0}
    return word if confirmed.get(word, True) else "inconclusive"


def settle(first: Sequence[Launch], fresh: Sequence[Launch], effect: float) -> Word:
    """Return the final decision from the first launches and the fresh launches.

    Fresh launches are made only for cases that the first launches did not find the same. A first result of slower or
    faster may be chance, because many cases are tested: it stands only if the fresh launches, judged alone, confirm it.
    A case without a confirmed result is the same if all launches together show that. Of 1,000 simulated comparisons
    with 7 launches, an effect of 5% and launches that spread by 4%, this called identical code slower or faster in none
    and the same in 96%, and a HEAD 10% slower was slower in 98% (tests/results/gates/paired/test_decision.py).
    """
    word = judge(first, effect)
    if word == "same" or word == judge(fresh, effect):
        return word
    return "same" if judge([*first, *fresh], effect) == "same" else "inconclusive"
