"""The regression gates: `meshmark regress exact BASE.json HEAD.json`, and `paired` for step times."""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import Unwritable, require_apart, require_file, save_text
from benchmarks.commandline.parser import Parser
from results.gates.exchange import action_json, bencher_json, junit
from results.gates.report import markdown, terminal
from results.gates.verdict import Report
from results.records.reading import NotComparable, RecordError

GATES = {
    "exact": "compare FLOPs, memory and collectives of compiled steps; equal programs have equal numbers",
    "paired": "compare step times of two checkouts, timed interleaved on this machine",
}
MODULES = {"exact": "results.gates.exact", "paired": "results.gates.paired.gate"}
REPORTS = {
    "markdown": (markdown, "write the report as Markdown, for a pull request"),
    "junit": (junit, "write the report as JUnit XML"),
    "action_json": (action_json, "write HEAD's values for github-action-benchmark's customSmallerIsBetter"),
    "bencher_json": (bencher_json, "write HEAD's values in Bencher Metric Format"),
}
EPILOG = """exit codes:
  0  green: nothing is worse
  1  red: a case is worse, slower, or vanished
  2  the command cannot be understood
  3  inconclusive: too noisy to tell (paired only)
  4  not comparable: other versions (without --across-versions), flags or devices, or no case in common
  5  broken input: a file is missing, cut short, foreign, empty, or of another schema; or a report cannot be written
"""


def make_parser(asked: str = "") -> Parser:
    """Return the parser of `meshmark regress`, with the options of the gate that is asked for; others stay unloaded."""
    about = {"epilog": EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(prog="meshmark regress", description="Judge a change.", **about)
    gates = parser.add_subparsers(dest="gate", metavar="GATE", required=True)
    for name, text in GATES.items():
        gate_parser = gates.add_parser(name, help=text, description=text, **about)
        if name == asked:
            gate = importlib.import_module(MODULES[name])
            gate.add_arguments(gate_parser)
            gate_parser.set_defaults(run=gate.run)
        for form, (_, purpose) in REPORTS.items():
            gate_parser.add_argument(f"--{form.replace('_', '-')}", type=Path, metavar="FILE", help=purpose)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = make_parser(*arguments[:1])
    options = parser.parse_args(arguments)
    paths = {form: path for form in REPORTS if (path := getattr(options, form))}
    try:
        prepare(paths, [Path(getattr(options, name)) for name in ("base", "head")])
    except Unwritable as error:
        parser.exit(BROKEN_INPUT, f"{error}\n")
    try:
        report = options.run(options)
    except NotComparable as error:
        report = Report(options.gate, refusal="not comparable", reason=str(error))
    except RecordError as error:
        report = Report(options.gate, refusal="broken input", reason=str(error))
    print(terminal(report), end="", flush=True)
    unwritten = [error for form, path in paths.items() if (error := failure(path, REPORTS[form][0](report)))]
    for error in unwritten:
        print(error, file=sys.stderr)
    return BROKEN_INPUT if unwritten and report.exit_code == 0 else report.exit_code


def prepare(paths: Mapping[str, Path], inputs: Sequence[Path]) -> None:
    """Check that reports can be written, and empty their files, so that a crash leaves no old report behind.

    Raises:
        Unwritable: a report cannot be written, or its file is an input or another report.
    """
    require_apart({f"--{form.replace('_', '-')}": path for form, path in paths.items()}, inputs)
    for path in paths.values():
        require_file(path)
    for path in paths.values():
        save_text(path, "")


def failure(path: Path, text: str) -> Unwritable | None:
    """Write a report; return the error if it cannot be written to its path, else None."""
    try:
        save_text(path, text)
    except Unwritable as error:
        return error
    return None


if __name__ == "__main__":
    run_command(main)
