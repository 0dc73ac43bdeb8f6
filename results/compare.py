"""Compares stored runs case by case, without judging them: `meshmark compare A.json B.json [C.json ...]`."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.parser import Parser
from results.cli.ending import refusing
from results.cli.tables import FORMS
from results.gates.report import changed_lines, counted_words, own_words, ratio, shared_words
from results.gates.stored import compare_runs
from results.gates.verdict import Finding, Report
from strategies.files import shown

SIDES = "<>>><<"
EPILOG = """exit codes:
  0  the runs were compared, whatever the difference; `meshmark regress` judges it
  2  not comparable: the runs differ in machine, versions or configuration
  5  a file cannot be read
"""


def rows_of(report: Report, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a header and a row for each case: both medians, their ratio with its 95% interval, verdict and note."""
    shared = shared_words(report)
    header = "case", *names, "ratio (95% interval)", "", ""
    return [header, *(cells(finding, shared) for finding in report.findings)]


def cells(finding: Finding, shared: Sequence[str]) -> tuple[str, ...]:
    """Return the row of a case."""
    medians = milliseconds(finding.base), milliseconds(finding.head)
    return own_words(finding.case, shared), *medians, ratio(finding), finding.word, finding.note


def milliseconds(seconds: float | None) -> str:
    """Format a step time in milliseconds, or "-" if it is unknown.

    >>> milliseconds(0.0123456), milliseconds(2.5), milliseconds(None)
    ('12.35 ms', '2,500.00 ms', '-')
    """
    return "-" if seconds is None else f"{1e3 * seconds:,.2f} ms"


def text(times: Report, counters: Report, names: Sequence[str], form: str) -> Iterator[str]:
    """Yield the lines of a comparison of two runs.

    Args:
        times: findings about step times.
        counters: findings about exact counters.
        names: headers of the two columns of times.
        form: a key of `FORMS`; with "csv" there is only the table.
    """
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


def make_parser() -> Parser:
    """Return the parser of `meshmark compare`."""
    parser = Parser(
        prog="meshmark compare",
        description="Compare stored runs case by case: each of the other runs with the first.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("base", type=Path, metavar="A.json", help="the run to compare with, measured or merged")
    parser.add_argument("others", nargs="+", type=Path, metavar="B.json", help="a run to compare with A.json")
    parser.add_argument("--format", choices=tuple(FORMS), default="text", help="output format; default: %(default)s")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    with refusing(parser):
        for number, other in enumerate(options.others):
            times, counters = compare_runs(options.base, other)
            paths = options.base, other
            stems = tuple(shown(Path(path.stem)) for path in paths)
            names = stems if len(set(stems)) == 2 else tuple(map(shown, paths))
            print(*[""] * (number > 0), *text(times, counters, names, options.format), sep="\n")


if __name__ == "__main__":
    run_command(main)
