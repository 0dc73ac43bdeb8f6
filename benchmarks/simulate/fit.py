"""Fits the constants of a machine to measured training runs.

meshmark fit results/published/megatron_a100_clusters.csv --machine a100_megatron_cluster
"""

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_apart, require_file, save_text
from benchmarks.cli.tables import aligned
from benchmarks.simulate.fitting import Fit, fit, left_out, predicted
from benchmarks.simulate.judging import Errors, errors_of
from benchmarks.simulate.machine import IN_SAMPLE, RANGES, Machine
from benchmarks.simulate.machines import as_file, machine, machine_path
from benchmarks.simulate.published import Run, run_of
from benchmarks.simulate.tables import Row, cluster_of, error_cells, model_of, read_rows
from strategies.files import read_json
from strategies.infeasible import Infeasible


def main(args: argparse.Namespace) -> None:
    """Fit a machine's constants to the runs of tables, and report the errors of runs that a fit has not seen.

    Raises:
        SystemExit: a table cannot be read, the machine is not known, there are too few measured runs, or the output
            cannot be written.
    """
    with refusing():
        path = machine_path(args.machine)
        if args.out:
            require_apart({"--out": args.out}, (*args.runs, path))
            require_file(args.out)
        start = machine(args.machine)
        rows, runs = expressed([row for path in args.runs for row in read_rows(path)], start)
        found = fit(runs, start, args.only)
    fitted = errors_of(predicted(runs, start, found.constants).tolist(), [run.step_seconds or 0.0 for run in runs])
    held_out = held_out_errors(rows, runs, start, args.only)
    lines = errors_table({"the runs that were fitted": fitted, **held_out})
    if not held_out:
        lines.append("these errors are in sample: no model and no cluster could be left out of the fit")
    print("\n".join([*constants_table(found), "", *lines]))
    if args.out:
        source = f"fitted to {len(runs)} runs of {', '.join(path.name for path in args.runs)}"
        source += "" if held_out else f"; {IN_SAMPLE}"
        error = [fitted, *held_out.values()][-1].mean
        save_text(args.out, as_file(read_json(path), found.constants, error, source))
        print(f"\nwrote {args.out}")


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


def held_out_errors(
    rows: Sequence[Row], runs: Sequence[Run], start: Machine, only: Collection[str]
) -> dict[str, Errors]:
    """Errors of runs whose model, or, last, whose cluster was left out of the fit; empty if there is one of each."""
    guesses = {}
    for name, key in (("models", model_of), ("clusters", cluster_of)):
        if len({*(groups := [key(row) for row in rows])}) > 1:
            try:
                guesses[f"{name} that were left out"] = left_out(runs, groups, start, only)
            except ValueError as error:
                print(f"without one of the {name}: {error}")
    measured = [run.step_seconds or 0.0 for run in runs]
    return {name: errors_of(seconds.tolist(), measured) for name, seconds in guesses.items()}


def errors_table(errors: Mapping[str, Errors]) -> list[str]:
    """Lines of the errors."""
    lines = [("predictions of", "runs", "mean error", "median", "bias", "rank")]
    # Without regret, the last cell: these runs are of several works.
    lines += [(name, *error_cells(found)[:-1]) for name, found in errors.items()]
    return aligned(lines, ["<", *">" * 5])
