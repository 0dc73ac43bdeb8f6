"""What a gate answers: findings in words, and one verdict on them all, with its exit code.

Both gates, `exact` and `paired.gate`, return a `Report`; `report` shows it to people and `exchange` to programs.
"""

from dataclasses import dataclass
from typing import Literal

Word = Literal["vanished", "worse", "slower", "inconclusive", "new", "better", "faster", "same"]
Refusal = Literal["not comparable", "broken input"]
Verdict = Literal["green", "red", "inconclusive"] | Refusal

# Gravest first: a case is called by the gravest of its findings, and listed in this order.
WORDS: tuple[Word, ...] = ("vanished", "worse", "slower", "inconclusive", "new", "better", "faster", "same")
RED: frozenset[Word] = frozenset({"vanished", "worse", "slower"})

# 2 is argparse's own, for a command that cannot be understood.
EXIT_CODES: dict[Verdict, int] = {"green": 0, "red": 1, "inconclusive": 3, "not comparable": 4, "broken input": 5}


class NotComparable(ValueError):
    """Two runs that are each whole, but of which no fair comparison can be made; the message names what differs."""


@dataclass(frozen=True)
class Finding:
    """What is said of one metric of one case, or of the case as a whole.

    Attributes:
        case: what was run, in full: the same text for the same case in every run.
        word: what became of it.
        metric: a name in `results.gates.metrics.METRICS`; empty if the finding is about the whole case.
        base, head: the two values, in the metric's unit; None where there is none.
        ratio: head over base; a gate that pairs samples gives the estimate of its pairs.
        interval: the confidence bounds of the ratio, low and high; None where values are exact.
        note: why, in words: a reason, an allowance, a hint.
    """

    case: str
    word: Word
    metric: str = ""
    base: float | None = None
    head: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def changed(self) -> bool:
        """Whether there is something to show: another word than same, or another value within its allowance.

        Where values are samples they always differ, and the word alone counts.
        """
        return self.word != "same" or (self.interval is None and self.base != self.head)


@dataclass(frozen=True)
class Measure:
    """A value of HEAD, for those who track it over time: `low` and `high` are its spread, None where it has none."""

    case: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Report:
    """The answer of a gate.

    Attributes:
        title: what was compared with what, in one line.
        findings: at least one for each case of BASE or HEAD.
        measures: HEAD's values.
        remarks: lines about the whole comparison: what was passed over, and how it was measured.
        refusal: set if nothing could be compared; `reason` then says why, and the way out.
    """

    title: str
    findings: tuple[Finding, ...] = ()
    measures: tuple[Measure, ...] = ()
    remarks: tuple[str, ...] = ()
    refusal: Refusal | None = None
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """One word for all findings; a report that compared nothing is never green."""
        words = {finding.word for finding in self.findings}
        if self.refusal:
            return self.refusal
        if words & RED:
            return "red"
        if "inconclusive" in words:
            return "inconclusive"
        return "green" if words - {"new"} else "not comparable"

    @property
    def exit_code(self) -> int:
        """What the command exits with."""
        return EXIT_CODES[self.verdict]

    def cases(self) -> dict[str, list[Finding]]:
        """The findings of each case, the gravest first; cases in the order of their gravest."""
        by_case: dict[str, list[Finding]] = {}
        for finding in sorted(self.findings, key=lambda finding: WORDS.index(finding.word)):
            by_case.setdefault(finding.case, []).append(finding)
        return by_case
