"""The metrics: each with its unit, which way is better, and how much worse still counts as the same. One table."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
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
        """Read what `str` prints.

        Raises:
            ValueError: it is no amount of at least 0.
        """
        try:
            amount = float(text.removesuffix("%"))
        except ValueError:
            amount = math.nan
        if not 0 <= amount < math.inf:
            raise ValueError(f"{text!r} is no allowance; give a number of at least 0, or a percentage such as 2.5%")
        return cls(amount, percent=text.endswith("%"))

    def of(self, base: float) -> float:
        """The amount, for this BASE."""
        return abs(base) * self.amount / 100 if self.percent else self.amount

    def __str__(self) -> str:
        return f"{self.amount:g}{'%' if self.percent else ''}"


@dataclass(frozen=True)
class Metric:
    """A number of a row, under the row's name for it.

    Attributes:
        name: its key in `extra_info`.
        unit: of its values.
        better: which way is better.
        allowance: how much worse the exact gate lets it be, unless told otherwise.
    """

    name: str
    unit: str
    better: Better = "lower"
    allowance: Allowance = Allowance()

    def judge(self, base: float, head: float, allowance: Allowance) -> Literal["better", "same", "worse"]:
        """Say what became of it from BASE to HEAD.

        >>> Metric("tokens_per_second", "tokens/s", "higher").judge(100, 90, Allowance.parse("5%"))
        'worse'
        """
        loss = head - base if self.better == "lower" else base - head
        if loss > allowance.of(base):
            return "worse"
        return "better" if loss < 0 else "same"


# Equal in every process of equal versions and flags: the exact gate holds these. All are of one device and one step.
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
# Different in every run, or explained by the others (an alias that is lost is in the total): tracked, not held exactly.
TRACKED = (
    Metric("step_seconds_median", "s"),
    Metric("tokens_per_second", "tokens/s", "higher"),
    Metric("memory.alias_bytes", "bytes", "higher"),
)
METRICS = {metric.name: metric for metric in (*EXACT, *TRACKED)}
_OF_AN_AXIS = re.compile(rf"compiled\.sent_bytes\.({'|'.join(COLLECTIVES)})\.[a-z]+")


def of_an_axis(name: str) -> bool:
    """Whether a column says what is sent over one mesh axis, whichever it is."""
    return _OF_AN_AXIS.fullmatch(name) is not None


def other_axes(*rows: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The exact metrics of mesh axes that some of the rows have, and this table has not.

    >>> [metric.name for metric in other_axes({"compiled.sent_bytes.permute.toy": 8, "compiled.flops": 1})]
    ['compiled.sent_bytes.permute.toy']
    """
    names = {name for row in rows for name in row if of_an_axis(name)}
    return tuple(Metric(name, "bytes") for name in sorted(names - METRICS.keys()))
