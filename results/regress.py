"""The regression gates: `meshmark regress exact BASE.json HEAD.json`, and `paired` for step times."""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cli.outputs import Unwritable, require_apart, require_file, save_text, write_then_print
from benchmarks.cli.statuses import BROKEN_INPUT
from results.gates.report import action_json, bencher_json, junit, markdown, terminal
from results.gates.verdict import Report
from results.records.reading import NotComparable, RecordError

MODULES = {"exact": "results.gates.exact", "paired": "results.gates.paired.gate"}
REPORTS = {"markdown": markdown, "junit": junit, "action_json": action_json, "bencher_json": bencher_json}
SUFFIXES = {"markdown": "md", "junit": "xml"}
"""Formats of reports that are not JSON."""


def main(options: argparse.Namespace) -> int:
    """Run a gate, and return its exit code."""
    paths = {form: path for form in REPORTS if (path := getattr(options, form))}
    prepare(paths, [Path(getattr(options, name)) for name in ("base", "head")])
    try:
        report = importlib.import_module(MODULES[options.gate]).run(options)
    except NotComparable as error:
        report = Report(options.gate, refusal="not comparable", reason=str(error))
    except RecordError as error:
        report = Report(options.gate, refusal="broken input", reason=str(error))
    try:
        write_then_print({path: REPORTS[form](report) for form, path in paths.items()}, terminal(report).rstrip("\n"))
    except Unwritable as error:
        print(error, file=sys.stderr)
        return report.exit_code or BROKEN_INPUT
    return report.exit_code


def prepare(paths: Mapping[str, Path], inputs: Sequence[Path]) -> None:
    """Check that reports can be written, and empty their files, so that a crash leaves no old report behind."""
    require_apart({f"--{form.replace('_', '-')}": path for form, path in paths.items()}, inputs)
    for form, path in paths.items():
        require_file(path, SUFFIXES.get(form, "json"))
    for path in paths.values():
        save_text(path, "")
