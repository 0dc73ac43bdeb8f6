"""The exact gate: compares counters of compiled programs case by case; equal programs have equal counters."""

import argparse
import difflib
import fnmatch
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from benchmarks.cases.columns import Column, gated
from benchmarks.cli.ending import Refused
from results.gates.counters import COMPILER, COUNTERS, PASSED, Snapshot, read_snapshot
from results.gates.report import counted_words
from results.gates.verdict import Finding, Report
from results.records.reading import Case, differences
from results.words import ending
from strategies.files import shown

Row = Mapping[str, Any]
Rows = Mapping[Case, Row]
VERSIONED = *COMPILER, "jax_settings", "platform_version"
"""Facts that may differ across versions."""
SEEN_BY_RUNNING = "a retrace in every step", "a loss that is NaN"
"""Regressions that only running a step shows. A test checks the names against the planted regressions of the proof."""


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
    """Judge the change of a metric from BASE to HEAD; `better` says whether `lower` or `higher` values are.

    >>> judge("higher", 100, 90, Allowance.parse("5%"))
    'worse'
    """
    loss = head - base if better == "lower" else base - head
    if loss > allowance.of(base):
        return "worse"
    return "better" if loss < 0 else "same"


def run(options: argparse.Namespace) -> Report:
    """Compare the two files."""
    allowed = dict(rule(*part) for part in options.allow)
    base, head = read_snapshot(options.base), read_snapshot(options.head)
    for pattern in allowed:
        require_metric(pattern, base.counters() | head.counters())
    tolerance = options.across_versions and Allowance(100 * options.across_versions, percent=True)
    return compare(base, head, allowed, only_head_cases=options.only_head_cases, tolerance=tolerance)


def rule(pattern: str, amount: str) -> tuple[str, Allowance]:
    """Check an allowance, and return it with the names that it is for, in which `*` stands for any text.

    >>> [str(part) for part in rule("memory.t*_bytes", "1%")]
    ['memory.t*_bytes', '1%']
    """
    if not set("*?[") & set(pattern):
        require_metric(pattern, COUNTERS)
    try:
        return pattern, Allowance.parse(amount)
    except ValueError as error:
        raise Refused(f"--allow {pattern}={amount}: {error}") from error


def require_metric(pattern: str, names: Iterable[str]) -> None:
    """Check that an allowance is for an exact metric: one of these, or of any kind of collective and mesh axis."""
    if not fnmatch.filter(names, pattern) and not gated([pattern], "exact"):
        nearest = ", ".join(difflib.get_close_matches(pattern, names, n=5, cutoff=0))
        raise Refused(f"--allow: {pattern!r} names no exact metric; METRIC=AMOUNT can be of {nearest}, ...")


def compare(
    base: Snapshot,
    head: Snapshot,
    allowed: Mapping[str, Allowance],
    *,
    only_head_cases: bool = False,
    tolerance: Allowance | None = None,
) -> Report:
    """Judge HEAD by BASE, case by case and metric by metric.

    `allowed` has allowances by names of metrics, as of `rule`; the last one counts, and others may not get worse at
    all. With `only_head_cases`, cases that are missing in HEAD are counted, but not judged. Versions may differ if
    there is a `tolerance`, which is how much worse each counter may then get.
    """
    title = f"exact counters, {shown(base.path)} -> {shown(head.path)}"
    measures = tuple(head.measures())
    if reason := other_compiler(base, head, tolerance is not None) or nothing_to_hold(base.rows, head.rows):
        return Report(title, measures=measures, refusal="not comparable", reason=reason)
    new = {case: row for case, row in head.rows.items() if case not in base.rows}
    absent = {case: row for case, row in base.rows.items() if case not in head.rows}
    vanished = {} if only_head_cases else absent
    findings = [
        finding
        for case, row in base.rows.items()
        if case in head.rows
        for finding in judge_case(str(case), row, head.rows[case], allowed, tolerance)
    ]
    findings += [Finding(str(case), "vanished", note=whereabouts(case, row, new)) for case, row in vanished.items()]
    findings += [not_read(str(case), row) or Finding(str(case), "new", note=ending(row)) for case, row in new.items()]
    versions = (*differences(base.facts, head.facts, ("BASE", "HEAD")), *by_counter(findings)) if tolerance else ()
    about = [*versions, *remarks(findings)]
    if absent and only_head_cases:
        about.append(f"{len(absent)} of the cases in BASE are not in HEAD, and not judged")
    elif absent:
        hint = "if HEAD was run with fewer cases on purpose, judge those with --only-head-cases"
        about.append(f"{len(absent)} vanished: {hint}")
    if any(row.get("kind") == "compiled" for row in head.rows.values()):
        unseen = ", ".join(SEEN_BY_RUNNING)
        about.append(f"not checked, because no step was run: {unseen}; a run without --compile-only shows them")
    return Report(title, tuple(findings), measures, tuple(about))


def by_counter(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a remark on each counter that differs in some case: the range of its ratios, and how many got worse."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.metric:
            groups.setdefault(finding.metric, []).append(finding)
    for metric, found in groups.items():
        ratios = [finding.ratio for finding in found if finding.ratio is not None]
        extent = f", {min(ratios):.3f}x to {max(ratios):.3f}x" if ratios else ""
        cases = f"{len(found)} {'case' if len(found) == 1 else 'cases'}"
        yield f"{metric} differs in {cases}{extent}; {counted_words(Counter(finding.word for finding in found))}"


def judge_case(
    case: str, base: Row, head: Row, allowed: Mapping[str, Allowance], tolerance: Allowance | None = None
) -> list[Finding]:
    """Judge one case: return a finding for each metric that differs, or a single one for the whole case."""
    passed = base["status"] == PASSED, head["status"] == PASSED
    if passed == (True, False):
        return [Finding(case, "worse", note=ending(head))]
    if unread := not_read(case, head):
        return [unread]
    if passed == (False, True):
        return [Finding(case, "better", note=f"was {ending(base)}")]
    if passed == (False, False):
        return [Finding(case, "same", note=f"failed in both: {ending(head)}")]
    allowances, found = {"*": tolerance or Allowance(), **allowed}, list[Finding]()
    for name, column in gated({**base, **head}, "exact").items():
        matching = [allowance for pattern, allowance in allowances.items() if fnmatch.fnmatchcase(name, pattern)]
        if finding := judge_metric(case, name, column, base, head, matching[-1], exact=not tolerance):
            found.append(finding)
    if found and (note := other_dtypes(base, head)):
        return [replace(finding, note="; ".join(filter(None, (finding.note, note)))) for finding in found]
    programs = {base["compiled.hash"], head["compiled.hash"]} - {None}
    unchanged = Finding(case, "same", note="another program" if len(programs) > 1 else "")
    return found or [unchanged]


def not_read(case: str, head: Row) -> Finding | None:
    """Return the finding that HEAD's program was not fully read, so its counters are unknown; None if it was."""
    unread = head.get("compiled.unread")
    return Finding(case, "worse", note=f"not read: {unread}") if unread else None


def other_dtypes(base: Row, head: Row) -> str:
    """Describe a change of the program's dtypes; "" if they are equal or unknown."""
    before, now = base.get("compiled.dtypes"), head.get("compiled.dtypes")
    if not isinstance(before, str) or not isinstance(now, str) or before == now:
        return ""
    return f"its arrays are {now}, were {before}"


def judge_metric(
    case: str, metric: str, column: Column, base: Row, head: Row, allowance: Allowance, *, exact: bool
) -> Finding | None:
    """Judge one metric; None if it is equal. Unless `exact`, it is better only by more than the allowance, too."""
    before = base.get(metric, 0)  # a row has no bytes along an axis that it lacks
    now = head.get(metric, None if before else 0)  # nor may it lack what it had
    if before == now:
        return None
    if before is None:
        return Finding(case, "new", metric, head=now, note="not known in BASE")
    if now is None:
        reason = f": {head['reason']}" if head["reason"] else ""
        return Finding(case, "worse", metric, base=before, note=f"not known in HEAD{reason}")
    word = judge(column.better, before, now, allowance)
    if not exact and word != "worse":
        word = "better" if abs(now - before) > allowance.of(before) else "within tolerance"
    note = f"allowed: {allowance}" if word == "same" else ""
    return Finding(case, word, metric, before, now, now / before if before else None, note=note)


def whereabouts(case: Case, row: Row, candidates: Rows) -> str:
    """Explain where a missing case may be in HEAD: with other settings, or renamed; "" if nothing suggests it."""
    namesake = next((other for other in candidates if other.name == case.name), None)
    if namesake:
        facts = zip(Case._fields, case, namesake, strict=True)
        return ", ".join(
            f"{fact} is {before} in BASE and {now} in HEAD" for fact, before, now in facts if before != now
        )
    program = row["compiled.hash"]
    twins = [other for other, its_row in candidates.items() if program and its_row["compiled.hash"] == program]
    return f"renamed? {twins[0].name} is the same program" if len(twins) == 1 else ""


def other_compiler(base: Snapshot, head: Snapshot, across_versions: bool) -> str:
    """Explain why counters could differ without a change of the code; "" if machine and versions agree.

    Across versions, only the packages, their settings and the platform's version may differ.
    """
    if base.fingerprint == head.fingerprint:
        return ""
    free = VERSIONED if across_versions else ()
    ours, theirs = ({name: value for name, value in each.facts.items() if name not in free} for each in (base, head))
    found = [*differences(ours, theirs, ("BASE", "HEAD"))]
    if across_versions:
        return f"{'; '.join(found)}: versions compare only where these are equal" if found else ""
    why = "; ".join(found) or f"counters_fingerprint is {base.fingerprint} in BASE and {head.fingerprint} in HEAD"
    versions = any(base.facts[name] != head.facts[name] for name in COMPILER)
    way_out = "; --across-versions 5% compares two versions" if versions else ""
    return f"{why}: counters compare only where these are equal{way_out}"


def nothing_to_hold(base: Rows, head: Rows) -> str:
    """Explain why HEAD shares no case with counters with BASE; "" if there is one."""
    common = [case for case in base if case in head]
    if not common:
        case, row = next(iter(base.items()))
        where = whereabouts(case, row, head) or f"BASE begins with {case.name}, HEAD with {next(iter(head)).name}"
        return f"no case of BASE is in HEAD ({where}); run the same cases"
    passed = [base[case] for case in common if base[case]["status"] == PASSED]
    if any(row[name] is not None for row in passed for name in COUNTERS):
        return ""
    return f"none of the {len(common)} cases in both has a counter in BASE: {common[0]} is {ending(base[common[0]])}"


def remarks(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return a remark that counts the notes of unchanged cases, if they have any."""
    notes = Counter(finding.note.partition(":")[0] for finding in findings if not finding.changed and finding.note)
    counted = ", ".join(f"{count} {note}" for note, count in notes.items())
    return (f"among the same: {counted}",) if counted else ()
