"""The table of metrics: each with its unit, its better direction, and its default allowance."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self

Better = Literal["lower", "higher"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
AXES = ("data", "fsdp", "pipeline", "context", "tensor", "several")


@dataclass(frozen=True)
class Allowance:
    """How much worse counts as the same: an amount in the metric's unit, or percent of BASE.

    >>> Allowance.parse("2.5%").of(1000), Allowance.parse("16").of(1000)
    (25.0, 16.0)
    """

    amount: float = 0
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an amount, or a percentage such as 2.5%.

        Raises:
            ValueError: the text is no number of at least 0.
        """
        try:
            amount = float(text.removesuffix("%"))
        except ValueError:
            amount = math.nan
        if not 0 <= amount < math.inf:
            raise ValueError(f"{text!r} is no allowance; give a number of at least 0, or a percentage such as 2.5%")
        return cls(amount, percent=text.endswith("%"))

    def of(self, base: float) -> float:
        """Return the allowance for a value of BASE, in the metric's unit."""
        return abs(base) * self.amount / 100 if self.percent else self.amount

    def __str__(self) -> str:
        return f"{self.amount:g}{'%' if self.percent else ''}"


@dataclass(frozen=True)
class Metric:
    """A numeric column of a row that gates judge or track.

    Attributes:
        name: its key in `extra_info`.
        unit: unit of its values.
        better: whether lower or higher values are better.
        allowance: how much worse counts as the same in the exact gate, unless `--allow` changes it.
    """

    name: str
    unit: str
    better: Better = "lower"
    allowance: Allowance = Allowance()

    def judge(self, base: float, head: float, allowance: Allowance) -> Literal["better", "same", "worse"]:
        """Judge the change from BASE to HEAD.

        >>> Metric("tokens_per_second", "tokens/s", "higher").judge(100, 90, Allowance.parse("5%"))
        'worse'
        """
        loss = head - base if self.better == "lower" else base - head
        if loss > allowance.of(base):
            return "worse"
        return "better" if loss < 0 else "same"


# Metrics of the exact gate: equal in all processes with equal versions and flags. All are per device and step.
EXACT = (
    Metric("compiled.flops", "flop"),
    Metric("compiled.bytes_accessed", "bytes"),
    Metric("compiled.instructions", "instructions"),
    Metric("compiled.compilations", "compilations"),
    Metric("compiled.sent_bytes", "bytes"),
    *(Metric(f"compiled.sent_bytes.{kind}.{axis}", "bytes") for kind in COLLECTIVES for axis in AXES),
    *(
        Metric(f"compiled.collectives.{kind}.{where}", "collectives")
        for kind in COLLECTIVES
        for where in ("outside_loops", "in_loops")
    ),
    Metric("memory.argument_bytes", "bytes"),
    Metric("memory.temp_bytes", "bytes"),
    Metric("memory.output_bytes", "bytes"),
    Metric("memory.total_bytes", "bytes"),
)
# Tracked, not judged by the exact gate: they vary between runs, or follow from others (lost aliases raise the total).
TRACKED = (
    Metric("step_seconds_median", "s"),
    Metric("tokens_per_second", "tokens/s", "higher"),
    Metric("memory.alias_bytes", "bytes", "higher"),
)
METRICS = {metric.name: metric for metric in (*EXACT, *TRACKED)}
_OF_AN_AXIS = re.compile(rf"compiled\.sent_bytes\.({'|'.join(COLLECTIVES)})\.[a-z]+")


@cache
def of_an_axis(name: str) -> bool:
    """Return whether a column is the bytes of a kind of collective along some mesh axis, built in or not."""
    return _OF_AN_AXIS.fullmatch(name) is not None


def metric_of(name: str) -> Metric | None:
    """Return the metric of a column, also of your own mesh axes; None if the column is none.

    >>> metric_of("compiled.sent_bytes.permute.toy").unit, metric_of("preset")
    ('bytes', None)
    """
    return METRICS.get(name) or (Metric(name, "bytes") if of_an_axis(name) else None)


def other_axes(*rows: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Return the exact metrics of mesh axes that are in some of the rows but not in this table.

    >>> [metric.name for metric in other_axes({"compiled.sent_bytes.permute.toy": 8, "compiled.flops": 1})]
    ['compiled.sent_bytes.permute.toy']
    """
    names = {name for row in rows for name in row if of_an_axis(name)}
    return tuple(Metric(name, "bytes") for name in sorted(names - METRICS.keys()))
