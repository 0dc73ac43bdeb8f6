"""The regression gates: `python -m results.regress exact BASE.json HEAD.json`, and `paired` for step times."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from results.exchange import action_json, bencher_json, junit
from results.records import RecordError
from results.report import markdown, terminal
from results.verdict import NotComparable, Report

GATES = {
    "exact": "compare what the compiler says of each step: FLOPs, memory, collectives; equal programs, equal numbers",
    "paired": "compare step times of two checkouts that take turns on this machine",
}
REPORTS = {
    "markdown": (markdown, "for a pull request"),
    "junit": (junit, "as JUnit XML"),
    "action_json": (action_json, "HEAD's values for github-action-benchmark's customSmallerIsBetter"),
    "bencher_json": (bencher_json, "HEAD's values in Bencher Metric Format"),
}
EPILOG = """exit codes:
  0  green: nothing is worse
  1  red: a case is worse, slower, or vanished
  2  the command cannot be understood
  3  inconclusive: too noisy to tell (paired only)
  4  not comparable: other versions, flags or devices, or no case in common
  5  broken input: a file is missing, cut short, foreign, empty, or of another schema
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    about = {"epilog": EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="python -m results.regress", description="Judge a change.", **about)
    gates = parser.add_subparsers(dest="gate", metavar="GATE", required=True)
    for name, text in GATES.items():
        gate_parser = gates.add_parser(name, help=text, description=text, **about)
        if name in arguments[:1]:  # a gate is imported when it is asked for
            gate = importlib.import_module(f"results.{name}")
            gate.add_arguments(gate_parser)
            gate_parser.set_defaults(run=gate.run)
        for form, (_, purpose) in REPORTS.items():
            gate_parser.add_argument(f"--{form.replace('_', '-')}", type=emptied, metavar="FILE", help=purpose)
    options = parser.parse_args(arguments)
    try:
        report = options.run(options)
    except NotComparable as error:
        report = Report(options.gate, refusal="not comparable", reason=str(error))
    except RecordError as error:
        report = Report(options.gate, refusal="broken input", reason=str(error))
    for form, (show, _) in REPORTS.items():
        if path := getattr(options, form):
            path.write_text(show(report), encoding="utf-8")
    print(terminal(report), end="")
    return report.exit_code


def emptied(text: str) -> Path:
    """A file to write a report to. It is emptied first: an old report must not outlive a gate that crashes."""
    try:
        Path(text).write_text("", encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}; name another") from error
    return Path(text)


if __name__ == "__main__":
    sys.exit(main())
