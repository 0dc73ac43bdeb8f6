"""Compares stored runs case by case, without judging them: `meshmark compare A.json B.json [C.json ...]`."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from results.formats import FORMS
from results.gates.report import changed_lines, counted_words, own_words, ratio, shared_words
from results.gates.stored import compare_runs
from results.gates.verdict import Report
from strategies.files import shown

SIDES = "<>>><<"


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


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    for number, other in enumerate(options.others):
        times, counters = compare_runs(options.base, other)
        paths = options.base, other
        stems = tuple(shown(Path(path.stem)) for path in paths)
        names = stems if len(set(stems)) == 2 else tuple(map(shown, paths))
        print(*[""] * (number > 0), *text(times, counters, names, options.format), sep="\n")
