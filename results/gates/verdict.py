"""The report of a gate: findings, one verdict on all of them, and the exit code.

Both gates, `exact` and `paired.gate`, return a `Report`. The module `report` formats it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks.cli.statuses import INTERRUPTED

Word = Literal["vanished", "worse", "slower", "inconclusive", "new", "better", "faster", "within tolerance", "same"]
Refusal = Literal["not comparable", "broken input"]
Verdict = Literal["green", "red", "inconclusive"] | Refusal

# Gravest first: the gravest finding of a case determines its word and its place in the report.
WORDS: tuple[Word, ...] = get_args(Word)
RED: frozenset[Word] = frozenset({"vanished", "worse", "slower"})

# 2 is argparse's own, for a command that cannot be understood.
EXIT_CODES: dict[Verdict, int] = {"green": 0, "red": 1, "inconclusive": 3, "not comparable": 4, "broken input": 5}


@dataclass(frozen=True)
class Finding:
    """The judgement of one metric of a case, or of the whole case.

    Attributes:
        case: the full name of the case, equal in all runs.
        metric: the name of a column with a gate; empty if the finding is about the whole case.
        base, head: the two values in the metric's unit; None if unknown.
        ratio: head divided by base; the paired gate gives the estimate from its pairs of samples.
        interval: lower and upper confidence bound of the ratio; None if values are exact.
        note: a reason, an allowance or a hint, in words.
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
        """Whether the report lists the finding: its word is not "same", or an exact value differs within its allowance.

        Values that are samples always differ, so for them only the word counts.
        """
        return self.word != "same" or (self.interval is None and self.base != self.head)


@dataclass(frozen=True)
class Measure:
    """A value of HEAD to track over time; `low` and `high` are its spread, None if it has none."""

    case: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Report:
    """The result of a gate: at least one finding for each judged case of BASE and HEAD, and HEAD's measures.

    The title names what was compared, and remarks are about the whole comparison. If nothing could be compared,
    `refusal` is set, and `reason` says why and how to fix it. If Ctrl-C or a time limit of the job `stopped` the
    comparison, findings are on the launches that were made.
    """

    title: str
    findings: tuple[Finding, ...] = ()
    measures: tuple[Measure, ...] = ()
    remarks: tuple[str, ...] = ()
    refusal: Refusal | None = None
    reason: str = ""
    stopped: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict on all findings; a report that compared nothing is never green."""
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
        """The exit code of the command."""
        return INTERRUPTED if self.stopped else EXIT_CODES[self.verdict]

    def cases(self) -> dict[str, list[Finding]]:
        """Return the findings of each case, gravest first; cases are ordered by their gravest finding."""
        by_case: dict[str, list[Finding]] = {}
        for finding in sorted(self.findings, key=lambda finding: WORDS.index(finding.word)):
            by_case.setdefault(finding.case, []).append(finding)
        return by_case
