"""Statistics over launches: runs of one program on one machine, each in new processes.

The launch is the sampling unit. Blocks of one launch share its processes and its conditions and are correlated (their
autocorrelation reaches 0.85), so sixty blocks are not sixty independent samples.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.cases.columns import COLUMNS

MIN_LAUNCHES = 3
"""Fewest launches that can decide a comparison."""
CONFIDENCE = 0.95
"""Confidence of a one-sided bound."""
BOTH_SIDES = (1 + CONFIDENCE) / 2
"""One-sided confidence of each bound of a 95% interval."""
ENDS = [name.removesuffix("_low") for name in COLUMNS if name.endswith("_low")]
INTERVALS = {name if name in COLUMNS else f"{name}_median": name for name in ENDS}
"""Columns with an interval, and the prefix of the columns of its ends, PREFIX_low and PREFIX_high."""

Word = Literal["slower", "inconclusive", "faster", "same"]


@dataclass(frozen=True)
class Change:
    """A change of step time over launches: the mean log ratio, and its lower and upper confidence bounds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, log_ratios: Sequence[float], confidence: float = CONFIDENCE) -> "Change":
        """Return the mean of log ratios, one for each launch, with a bound of this confidence on either side.

        The bounds use Student's t (1908, "The probable error of a mean"), because launches are few. With a single
        launch the bounds are infinite.
        """
        mean, count = statistics.fmean(log_ratios), len(log_ratios)
        if count < 2:
            return cls(mean, -math.inf, math.inf)
        return cls.around(mean, statistics.stdev(log_ratios) / math.sqrt(count), count - 1, confidence)

    @classmethod
    def unpaired(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Change":
        """Return the change from `theirs` to `ours`, log step times of separate launches, with a 95% interval.

        The interval uses Welch's t (1947, "The generalization of 'Student's' problem when several different population
        variances are involved"), because the variances may differ. Each side needs at least two launches.
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
        """Return a mean with Student's bounds, given its standard error and its degrees of freedom."""
        from scipy.special import stdtrit  # imported late, because it would delay --help

        margin = float(stdtrit(freedom, confidence)) * error
        return cls(mean, mean - margin, mean + margin)

    def word(self, effect: float) -> Word:
        """Classify the change; `effect` is the least change that matters, as a fraction.

        It is slower or faster if the mean exceeds the effect and the bounds exclude zero change. It is the same if both
        bounds lie within the effect (two one-sided tests; Schuirmann 1987, "A comparison of the two one-sided tests
        procedure and the power approach"). Otherwise it is inconclusive.
        """
        margin = math.log1p(effect)
        if self.mean > margin and self.low > 0:
            return "slower"
        if self.mean < -margin and self.high < 0:
            return "faster"
        return "same" if -margin < self.low and self.high < margin else "inconclusive"

    def __str__(self) -> str:
        """Format the change and its bounds in percent.

        >>> print(Change(math.log(1.05), math.log(1.02), math.log(1.08)))
        +5.0% (+2.0% to +8.0%)
        """
        if math.isinf(self.low):
            return f"{math.expm1(self.mean):+.1%}"
        return f"{math.expm1(self.mean):+.1%} ({math.expm1(self.low):+.1%} to {math.expm1(self.high):+.1%})"


def combine_launches(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the records of a case's launches into one; if a launch failed, return the record of the first failure.

    The columns in `INTERVALS` become the geometric mean of the launches, with a 95% interval over launches. Other
    numbers that differ become their mean. `samples` has the median step time of each launch, and `launches` their
    number.
    """
    number = {"launches": len(launches)}
    for record in launches:
        if record["status"] != "ok" or len(launches) == 1:
            return {**record, **number}
    record = {key: agreed([launch.get(key) for launch in launches]) for key in launches[0]} | number
    known = [launch["noisy"] for launch in launches if launch.get("noisy") is not None]
    record["noisy"] = any(known) if known else None
    for column, name in INTERVALS.items():
        record |= interval(column, name, [launch.get(column) for launch in launches])
    medians = [launch.get("step_seconds_median") for launch in launches]
    for column in ("tokens_per_second", "tokens_per_second_per_device"):
        if None not in medians and launches[0].get(column):
            record[column] = launches[0][column] * medians[0] / record["step_seconds_median"]
    return record | {"samples": () if None in medians else tuple(medians)}


def agreed(values: Sequence[Any]) -> Any:
    """Return the value of all launches. If they differ: the mean of numbers, whether all flags are set, the first text.

    None if a launch has no value. A flag says that a check was passed.
    """
    if all(value == values[0] for value in values):
        return values[0]
    if any(value is None for value in values):
        return None
    if all(isinstance(value, bool) for value in values):
        return all(values)
    if all(isinstance(value, int | float) for value in values):
        return statistics.fmean(values)
    return values[0]


def interval(column: str, name: str, medians: Sequence[float | None]) -> dict[str, float | None]:
    """Return the columns of a geometric mean and its 95% interval; all are None if a launch has no value."""
    columns = column, f"{name}_low", f"{name}_high"
    known = [math.log(median) for median in medians if median]
    if len(known) < len(medians):
        return dict.fromkeys(columns)
    change = Change.of(known, BOTH_SIDES)
    return dict(zip(columns, map(math.exp, (change.mean, change.low, change.high)), strict=True))
