"""Fits the constants of a machine to measured training runs.

meshmark fit results/published/megatron_a100_clusters.csv --machine a100_megatron_cluster
"""

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from benchmarks.cli.parsers import fit_runs
from benchmarks.cli.refusing import refusing
from benchmarks.commandline.ending import run
from benchmarks.commandline.outputs import require_apart, require_file, save_text, short
from benchmarks.commandline.tables import aligned
from benchmarks.seconds.fitting import Fit, fit, left_out, predicted
from benchmarks.seconds.judging import Errors, errors_of
from benchmarks.seconds.machine import RANGES, Machine
from benchmarks.seconds.machines import as_file, machine, machine_path
from benchmarks.seconds.published import Run, run_of
from benchmarks.seconds.tables import Row, cluster_of, model_of, read_rows
from strategies.files import read_json
from strategies.infeasible import Infeasible


def main(arguments: list[str] | None = None) -> None:
    """Fit a machine's constants to the runs of tables, and report the errors of runs that a fit has not seen.

    Raises:
        SystemExit: a table cannot be read, the machine is not known, there are too few measured runs, or the output
            cannot be written.
    """
    parser = fit_runs()
    asked: argparse.Namespace = parser.parse_args(arguments)
    with refusing(parser):
        path = machine_path(asked.machine)
        if asked.out:
            require_apart({"--out": asked.out}, (*asked.runs, path))
            require_file(asked.out)
        start = machine(asked.machine)
        rows, runs = expressed([row for path in asked.runs for row in read_rows(path)], start)
        found = fit(runs, start, asked.only)
    errors = errors_by_group(rows, runs, start, found, asked.only)
    print("\n".join([*constants_table(found), "", *errors_table(errors)]))
    if asked.out:
        source = f"fitted to {len(runs)} runs of {', '.join(path.name for path in asked.runs)}"
        with refusing(parser):
            save_text(asked.out, as_file(read_json(path), found.constants, [*errors.values()][-1].mean, source))
        print(f"\nwrote {short(asked.out)}")


def expressed(rows: Sequence[Row], start: Machine) -> tuple[list[Row], list[Run]]:
    """The rows that the formulas know, that were measured, and that are of the machine's stack, and their runs."""
    kept: list[Row] = []
    runs: list[Run] = []
    for number, row in enumerate(rows, 1):
        try:
            one = run_of(row)
        except Infeasible as error:
            print(f"left out: row {number}: {error}")
            continue
        if one.stack.name != start.stack.name:
            print(f"left out: row {number}: it is of {one.stack.name}, and machine {start.name} of {start.stack.name}")
        elif one.step_seconds:
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
            try:
                guesses[f"{name} that were left out"] = left_out(runs, groups, start, only)
            except ValueError as error:
                print(f"without one of the {name}: {error}")
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
