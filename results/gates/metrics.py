"""Whether a metric got better or worse, and by how much it may."""

import math
from dataclasses import dataclass
from typing import Literal, Self


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
        """Parse an amount, or a percentage such as 2.5%."""
        try:
            amount = float(text.removesuffix("%"))
        except ValueError:
            amount = math.nan
        if not 0 <= amount < math.inf:
            raise ValueError(f"{text!r} is not an allowance; use a number of at least 0, or a percentage such as 2.5%")
        return cls(amount, percent=text.endswith("%"))

    def of(self, base: float) -> float:
        """Return the allowance for a value of BASE, in the metric's unit."""
        return abs(base) * self.amount / 100 if self.percent else self.amount

    def __str__(self) -> str:
        return f"{self.amount:g}{'%' if self.percent else ''}"


def judge(better: str, base: float, head: float, allowance: Allowance) -> Literal["better", "same", "worse"]:
    """Judge the change of a metric from BASE to HEAD.

    Args:
        better: whether `lower` or `higher` values are better.
        base, head: the values.
        allowance: how much worse counts as the same.

    >>> judge("higher", 100, 90, Allowance.parse("5%"))
    'worse'
    """
    loss = head - base if better == "lower" else base - head
    if loss > allowance.of(base):
        return "worse"
    return "better" if loss < 0 else "same"
