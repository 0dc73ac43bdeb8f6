"""Launches: runs of one program on one machine, each in processes of its own, and what they say together.

The launch is the sampling unit. Blocks of one launch share its processes and its moment and are like one another (their
autocorrelation reaches 0.85), so that sixty of them are no sixty samples.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MIN_LAUNCHES = 3
"""Fewer settle nothing."""
CONFIDENCE = 0.95
"""Of a bound on one side."""
BOTH_SIDES = (1 + CONFIDENCE) / 2
"""Of each bound of a 95% interval."""
INTERVALS = {
    "step_seconds_median": "step_seconds",
    "relative_to_single": "relative_to_single",
    "relative_to_twin": "relative_to_twin",
    "canary_ratio": "canary_ratio",
}
"""Columns that have an interval, and how the names of its ends begin."""

Word = Literal["slower", "inconclusive", "faster", "same"]


@dataclass(frozen=True)
class Change:
    """How much longer something takes, over launches: the mean of logarithms of ratios, and a bound on either side."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, log_ratios: Sequence[float], confidence: float = CONFIDENCE) -> "Change":
        """With bounds of this confidence each by Student's t (1908, "The probable error of a mean"): launches are few.

        A single launch has no bounds.
        """
        mean, count = statistics.fmean(log_ratios), len(log_ratios)
        if count < 2:
            return cls(mean, -math.inf, math.inf)
        return cls.around(mean, statistics.stdev(log_ratios) / math.sqrt(count), count - 1, confidence)

    @classmethod
    def unpaired(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Change":
        """Of launches against others at other times, both as logarithms: a 95% interval.

        By Welch's t (1947, "The generalization of 'Student's' problem when several different population variances are
        involved"): the two may spread differently. Each must be of two launches at least.
        """
        mean = statistics.fmean(ours) - statistics.fmean(theirs)
        parts = [(statistics.variance(logs) / len(logs), len(logs) - 1) for logs in (ours, theirs)]
        variance = sum(part for part, _ in parts)
        if variance == 0:
            return cls(mean, mean, mean)
        freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
        return cls.around(mean, math.sqrt(variance), freedom, BOTH_SIDES)

    @classmethod
    def around(cls, mean: float, error: float, freedom: float, confidence: float) -> "Change":
        """A mean of this standard error, with Student's bounds for so many degrees of freedom."""
        from scipy.stats import t as student  # it takes seconds to load: not for a help

        margin = float(student.ppf(confidence, freedom)) * error
        return cls(mean, mean - margin, mean + margin)

    def word(self, effect: float) -> Word:
        """Slower or faster if the mean exceeds the least effect that matters, and the bounds exclude no change.

        The same if both bounds lie within the effect (two one-sided tests; Schuirmann 1987, "A comparison of the two
        one-sided tests procedure and the power approach").
        """
        margin = math.log1p(effect)
        if self.mean > margin and self.low > 0:
            return "slower"
        if self.mean < -margin and self.high < 0:
            return "faster"
        return "same" if -margin < self.low and self.high < margin else "inconclusive"

    def __str__(self) -> str:
        """In percent.

        >>> print(Change(math.log(1.05), math.log(1.02), math.log(1.08)))
        +5.0% (+2.0% to +8.0%)
        """
        if math.isinf(self.low):
            return f"{math.expm1(self.mean):+.1%}"
        return f"{math.expm1(self.mean):+.1%} ({math.expm1(self.low):+.1%} to {math.expm1(self.high):+.1%})"


def united(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record of the launches of a case; of a case that failed in one of them, the record that says so.

    Medians of launches are summed up by their geometric mean, with a 95% interval over launches, and are the `samples`.
    Other numbers that differ are the mean of the launches.
    """
    number = {"launches": len(launches)}
    for record in launches:
        if record["status"] != "ok" or len(launches) == 1:
            return {**record, **number}
    record = {key: agreed([launch.get(key) for launch in launches]) for key in launches[0]} | number
    for column, name in INTERVALS.items():
        record |= interval(column, name, [launch.get(column) for launch in launches])
    medians = [launch.get("step_seconds_median") for launch in launches]
    for column in ("tokens_per_second", "tokens_per_second_per_device"):
        if None not in medians and launches[0].get(column):
            record[column] = launches[0][column] * medians[0] / record["step_seconds_median"]
    return record | {"samples": () if None in medians else tuple(medians)}


def agreed(values: Sequence[Any]) -> Any:
    """What all say; the mean of numbers that differ, and of flags whether any is set. Of texts the first."""
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, bool) for value in values):
        return any(values)
    if all(isinstance(value, int | float) for value in values):
        return statistics.fmean(values)
    return values[0]


def interval(column: str, name: str, medians: Sequence[float | None]) -> dict[str, float | None]:
    """The columns of a median with its 95% interval over launches; unknown where it is so in one of them."""
    columns = column, f"{name}_low", f"{name}_high"
    known = [math.log(median) for median in medians if median]
    if len(known) < len(medians):
        return dict.fromkeys(columns)
    change = Change.of(known, BOTH_SIDES)
    return dict(zip(columns, map(math.exp, (change.mean, change.low, change.high)), strict=True))
