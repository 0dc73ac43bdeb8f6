"""Fits the constants of a machine to measured training runs.

python -m benchmarks.fit results/published/megatron_a100_clusters.csv --machine a100_megatron_cluster
"""

import argparse
import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from benchmarks.commandline.ending import BROKEN_INPUT, run
from benchmarks.commandline.main import WRONG_USAGE
from benchmarks.commandline.outputs import Unwritable, require_file, save_text
from benchmarks.commandline.tables import aligned
from benchmarks.parsers import fit_runs
from benchmarks.seconds.fitting import Fit, fit, left_out, predicted
from benchmarks.seconds.judging import Errors, errors_of
from benchmarks.seconds.machine import RANGES, Machine
from benchmarks.seconds.machines import FOLDER, UnknownMachine, as_file, machine
from benchmarks.seconds.published import Run, run_of
from benchmarks.seconds.tables import Row, cluster_of, model_of, read_rows
from strategies.config import Infeasible


def main(arguments: list[str] | None = None) -> None:
    """Fit a machine's constants to the runs of tables, and report the errors of runs that a fit has not seen.

    Raises:
        SystemExit: a table cannot be read, or the machine is not known.
    """
    parser = fit_runs()
    asked: argparse.Namespace = parser.parse_args(arguments)
    try:
        if asked.out:
            require_file(asked.out)
        start = machine(asked.machine)
        rows, runs = expressed([row for path in asked.runs for row in read_rows(path)])
        found = fit(runs, start, asked.only)
    except (Unwritable, UnknownMachine) as error:
        parser.exit(WRONG_USAGE, f"{parser.prog}: {error}\n")
    except (OSError, ValueError) as error:
        parser.exit(BROKEN_INPUT, f"{parser.prog}: {error}\n")
    errors = errors_by_group(rows, runs, start, found, asked.only)
    print("\n".join([*constants_table(found), "", *errors_table(errors)]))
    if asked.out:
        path = FOLDER / f"{start.name}.json"
        told = json.loads((path if path.exists() else Path(asked.machine)).read_text())
        source = f"fitted to {len(runs)} runs of {', '.join(path.name for path in asked.runs)}"
        save_text(asked.out, as_file(told, found.constants, [*errors.values()][-1].mean, source))
        print(f"\nwrote {asked.out}")


def expressed(rows: Sequence[Row]) -> tuple[list[Row], list[Run]]:
    """The rows that the formulas know and that were measured, and their runs."""
    kept: list[Row] = []
    runs: list[Run] = []
    for row in rows:
        try:
            one = run_of(row)
        except Infeasible as error:
            print(f"left out: {error}")
            continue
        if one.step_seconds:
            kept.append(row)
            runs.append(one)
    return kept, runs


def constants_table(found: Fit) -> list[str]:
    """Lines: each constant with its plausible range, and whether it lies at an end of it."""
    notes = {**dict.fromkeys(found.at_edges, "at an end of its range"), **dict.fromkeys(found.kept, "not fitted")}
    rows = [("constant", "value", "from", "to", "")]
    for name, value in dataclasses.asdict(found.constants).items():
        rows.append((name, f"{value:.4g}", f"{RANGES[name].low:.4g}", f"{RANGES[name].high:.4g}", notes.get(name, "")))
    return aligned(rows, [*"<", *">" * 3, "<"])


def errors_by_group(
    rows: Sequence[Row], runs: Sequence[Run], start: Machine, found: Fit, only: Collection[str]
) -> dict[str, Errors]:
    """Errors of the runs that were fitted, and, last, of runs whose model or cluster was left out of the fit."""
    guesses = {"the runs that were fitted": predicted(runs, start, found.constants)}
    for name, key in (("models", model_of), ("clusters", cluster_of)):
        if len({*(groups := [key(row) for row in rows])}) > 1:
            guesses[f"{name} that were left out"] = left_out(runs, groups, start, only)
    measured = [run.step_seconds or 0.0 for run in runs]
    return {name: errors_of(each.tolist(), measured) for name, each in guesses.items()}


def errors_table(errors: Mapping[str, Errors]) -> list[str]:
    """Lines of the errors."""
    lines = [("predictions of", "runs", "mean error", "median", "bias", "rank")]
    for name, told in errors.items():
        rank = "" if told.rank_correlation is None else f"{told.rank_correlation:.2f}"
        lines.append((name, str(told.runs), f"{told.mean:.1%}", f"{told.median:.1%}", f"{told.bias:+.1%}", rank))
    return aligned(lines, ["<", *">" * 5])


if __name__ == "__main__":
    run(main)
