"""Compares stored runs case by case, without judging them: `meshmark compare A.json B.json [C.json ...]`.

Step times have intervals, and the counters of the compiled programs are exact.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.formats import FORMS
from results.gates.counters import PASSED, Snapshot, snapshot_of_run
from results.gates.exact import judge_case, nothing_to_hold, whereabouts
from results.gates.report import changed_lines, counted_words, own_words, ratio, shared_words
from results.gates.verdict import Finding, Report
from results.records.launches import MIN_LAUNCHES, Change
from results.records.reading import NotComparable, other_machine, read_run
from results.words import ending
from strategies.files import shown

METRIC = "step_seconds_median"
EFFECT = 0.05
"""Least relative change of step time that matters."""
ONE_LAUNCH_EFFECT = 0.25
"""Least change that is reported if a side has fewer than three launches.

Single launches of one program differ by less than 24% in 99% of 3,042 pairs: 39 cases in 13 default runs on two cores.
"""
SIDES = "<>>><<"


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    for number, other in enumerate(options.others):
        times, counters = compare_runs(options.base, other)
        paths = options.base, other
        stems = tuple(shown(Path(path.stem)) for path in paths)
        names = stems if len(set(stems)) == 2 else tuple(map(shown, paths))
        print(*[""] * (number > 0), *text(times, counters, names, options.format), sep="\n")


def rows_of(report: Report, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a header and a row for each case: both medians, their ratio with its 95% interval, verdict and note."""
    shared, rows = shared_words(report), [("case", *names, "ratio (95% interval)", "", "")]
    for found in report.findings:
        medians = milliseconds(found.base), milliseconds(found.head)
        rows.append((own_words(found.case, shared), *medians, ratio(found), found.word, found.note))
    return rows


def milliseconds(seconds: float | None) -> str:
    """Format a step time in milliseconds, or "-" if it is unknown.

    >>> milliseconds(0.0123456), milliseconds(2.5), milliseconds(None)
    ('12.35 ms', '2,500.00 ms', '-')
    """
    return "-" if seconds is None else f"{1e3 * seconds:,.2f} ms"


def text(times: Report, counters: Report, names: Sequence[str], form: str) -> Iterator[str]:
    """Yield the lines of a comparison of two runs, whose names are the headers of times; as CSV only the table."""
    table = FORMS[form](rows_of(times, names), SIDES)
    if form == "csv":
        yield table
        return
    shared = shared_words(times)
    yield from (times.title, *([f"all cases: {' '.join(shared)}"] if shared else []), "", table, "")
    yield counted_words(Counter(finding.word for finding in times.findings))
    yield from times.remarks
    if any(finding.changed for finding in counters.findings):
        fence = ["```"] if form == "markdown" else []
        yield from ("", *fence, *changed_lines(counters)[:-1], *fence)
    elif counters.findings:
        yield "the exact counters of the compiled programs are equal"


def compare_runs(base: Path, head: Path) -> tuple[Report, Report]:
    """Compare two stored runs: a report on step times, and one on exact counters."""
    runs, names = [read_run(base), read_run(head)], (shown(base), shown(head))
    if why := other_machine(runs[0]["machine_info"], runs[1]["machine_info"], names):
        versions = runs[0]["machine_info"].get("versions") != runs[1]["machine_info"].get("versions")
        way_out = "; `meshmark regress exact --across-versions 5%` compares compiled programs" if versions else ""
        raise NotComparable(f"{why}: step times compare only where these are equal{way_out}")
    before, after = snapshot_of_run(base, runs[0]), snapshot_of_run(head, runs[1])
    if not before.rows.keys() & after.rows.keys():
        raise NotComparable(f"{nothing_to_hold(before.rows, after.rows)}; BASE is {names[0]} and HEAD is {names[1]}")
    return times(before, after), counters(before, after)


def times(base: Snapshot, head: Snapshot) -> Report:
    """Report on the step times of the cases of both runs: BASE's in their order, then new ones."""
    new = {case: row for case, row in head.rows.items() if case not in base.rows}
    findings = [
        judge_time(str(case), row, head.rows[case])
        if case in head.rows
        else Finding(str(case), "vanished", base=seconds(row), note=whereabouts(case, row, new))
        for case, row in base.rows.items()
    ]
    findings += [Finding(str(case), "new", head=seconds(row), note=ending(row)) for case, row in new.items()]
    return Report(f"step times, {shown(base.path)} -> {shown(head.path)}", tuple(findings), remarks=made_of(base, head))


def judge_time(case: str, base: Mapping[str, Any], head: Mapping[str, Any]) -> Finding:
    """Judge the step time of a case.

    With at least three launches on both sides, the interval is over launches. With fewer it is over the blocks of a
    launch, or wider, and only a large change is called slower or faster, because launches of the same program differ.
    """
    found = Finding(case, "inconclusive", METRIC, seconds(base), seconds(head))
    if PASSED not in (base["status"], head["status"]):
        return replace(found, word="same", note=f"failed in both: {ending(head)}")
    if base["status"] != head["status"]:
        failed = head if base["status"] == PASSED else base
        return replace(found, word="worse" if failed is head else "better", note=ending(failed))
    if found.base is None or found.head is None:
        return replace(found, note="not timed in both")
    if min(base["launches"], head["launches"]) >= MIN_LAUNCHES:
        change = Change.unpaired(*([math.log(median) for median in row["samples"]] for row in (head, base)))
        word = change.word(EFFECT)
    else:
        change, far = over_blocks(base, head), math.log1p(ONE_LAUNCH_EFFECT)
        word = "slower" if change.low > far else "faster" if change.high < -far else "inconclusive"
    bounds = (math.exp(change.low), math.exp(change.high)) if math.isfinite(change.low) else None
    noisy = "noisy" if base.get("noisy") or head.get("noisy") else ""
    return replace(found, word=word, ratio=math.exp(change.mean), interval=bounds, note=noisy)


def over_blocks(base: Mapping[str, Any], head: Mapping[str, Any]) -> Change:
    """Return the change between medians; its bounds are the ratios of opposite ends of both rows' intervals."""
    ends: list[Any] = [row.get(f"step_seconds_{end}") for row in (base, head) for end in ("low", "high")]
    mean = math.log(head[METRIC] / base[METRIC])
    if None in ends:
        return Change(mean, -math.inf, math.inf)
    base_low, base_high, head_low, head_high = ends
    return Change(mean, math.log(head_low / base_high), math.log(head_high / base_low))


def counters(base: Snapshot, head: Snapshot) -> Report:
    """Report on the exact counters of cases that passed in both runs, judged as in the exact gate."""
    both = [case for case, row in base.rows.items() if row["status"] == head.rows.get(case, {}).get("status") == PASSED]
    findings = [each for case in both for each in judge_case(str(case), base.rows[case], head.rows[case], {})]
    return Report(f"exact counters, {shown(base.path)} -> {shown(head.path)}", tuple(findings))


def seconds(row: Mapping[str, Any]) -> float | None:
    """Return the median step time in seconds; None if the case did not pass or was not timed."""
    return row.get(METRIC) if row["status"] == PASSED else None


def made_of(base: Snapshot, head: Snapshot) -> tuple[str, ...]:
    """Return remarks on how the intervals were computed."""
    fewest = [min(row["launches"] for row in snapshot.rows.values()) for snapshot in (base, head)]
    if min(fewest) >= MIN_LAUNCHES:
        return (f"95% intervals over launches; the smallest change that counts is {EFFECT:.0%}",)
    return (
        f"fewer than {MIN_LAUNCHES} launches in a run: other launches can differ by more than its interval",
        f"only changes whose whole interval lies beyond a factor of {1 + ONE_LAUNCH_EFFECT:g} are reported; "
        "`meshmark merge` combines several launches",
    )
