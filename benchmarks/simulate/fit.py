"""Fits the constants of a machine to measured runs, by robust least squares of logarithms, with cross-validation.

meshmark fit results/published/megatron_a100_clusters.csv --machine a100_megatron_cluster
"""

import argparse
import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks.cli.accuracy import Errors, errors_of
from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_apart, require_file, write_then_print
from benchmarks.cli.tables import aligned
from benchmarks.simulate.machine import IN_SAMPLE, RANGES, START, Constants, Machine
from benchmarks.simulate.machines import as_file, machine_path, made, read_file
from benchmarks.simulate.predict import TableRow, cluster_of, error_cells, model_of, read_tables
from benchmarks.simulate.published import PublishedRun, run_of
from benchmarks.simulate.step import predict_seconds
from strategies.files import read_json
from strategies.infeasible import Infeasible

OUTLIER = 0.03
"""Errors far above this fraction hardly count (scipy's `cauchy`). Published runs have faults, such as a run that takes
twice as long as its neighbours, and no constants should follow them."""
EDGE = 0.01
"""A constant this near to an end of its range, as a fraction of the range, is reported."""


class Fit(NamedTuple):
    """Fitted constants.

    Attributes:
        constants: fitted.
        at_edges: names of those that lie at an end of their range: the model wants something that it does not have.
        kept: names of those that were not fitted, because they change no prediction or were not asked for.
    """

    constants: Constants
    at_edges: tuple[str, ...]
    kept: tuple[str, ...]


def predicted_seconds(runs: Sequence[PublishedRun], machine: Machine, constants: Constants) -> np.ndarray:
    """Predicted seconds of runs on a machine with other constants."""
    other = dataclasses.replace(machine, constants=constants)
    timelines = [predict_seconds(run.cost, other.running(run.stack, run.precision), run.topology) for run in runs]
    return np.array([timeline.step_seconds for timeline in timelines])


def fit(runs: Sequence[PublishedRun], machine: Machine, only: Collection[str] = ()) -> Fit:
    """Fit the constants of a machine to the measured seconds of runs.

    Args:
        runs: measured.
        machine: with values for the constants that are not fitted, and from which a fit starts.
        only: names of constants to fit; by default all on which the runs depend.

    Raises:
        ValueError: `only` has a name that is no constant, no run is measured, or fewer than there are constants to fit.
    """
    if unknown := {*only} - {*RANGES}:
        raise ValueError(f"{', '.join(sorted(unknown))} is no constant; the constants are {', '.join(RANGES)}")
    if not runs:
        raise ValueError("no measured row of this stack and device can be expressed; give rows with step_seconds")
    measured = np.array([run.step_seconds for run in runs])
    free = [name for name in dict.fromkeys(only or RANGES) if depends(runs, machine, name)]
    if not free:
        raise ValueError(f"no prediction of these runs depends on {', '.join(only)}; name other constants")
    if len(runs) < len(free):
        raise ValueError(f"{len(runs)} runs cannot fix {len(free)} constants; give at least as many runs")
    low = np.array([RANGES[name].low for name in free])
    span = np.array([RANGES[name].high for name in free]) - low

    def constants_at(place: np.ndarray) -> Constants:
        values = dict(zip(free, map(float, low + place * span), strict=True))
        return dataclasses.replace(machine.constants, **values)

    def errors(place: np.ndarray) -> np.ndarray:
        return np.log(predicted_seconds(runs, machine, constants_at(place)) / measured)

    # From the constants of the machine, but inside of the ranges, where a fit can move to either side.
    begin = np.array([getattr(machine.constants, name) for name in free])
    start = np.clip((begin - low) / span, 2 * EDGE, 1 - 2 * EDGE)
    found = least_squares(errors, start, bounds=(0, 1), loss="cauchy", f_scale=OUTLIER, diff_step=1e-3, max_nfev=50)
    at_edges = [name for name, place in zip(free, found.x, strict=True) if min(place, 1 - place) < EDGE]
    return Fit(constants_at(found.x), tuple(at_edges), tuple(name for name in RANGES if name not in free))


def depends(runs: Sequence[PublishedRun], machine: Machine, name: str) -> bool:
    """Whether any prediction changes with a constant."""
    predictions = [
        predicted_seconds(runs, machine, dataclasses.replace(START, **{name: value}))
        for value in (RANGES[name].low, RANGES[name].high)
    ]
    return bool(np.any(predictions[0] != predictions[1]))


def left_out(
    runs: Sequence[PublishedRun], groups: Sequence[str], machine: Machine, only: Collection[str] = ()
) -> np.ndarray:
    """Predictions of each run by a fit to the runs of all other groups.

    Raises:
        ValueError: there is one group, or too few runs outside of one.
    """
    if len({*groups}) < 2:
        raise ValueError(f"all runs are of {groups[0]}; cross-validation takes two groups or more")
    result = np.empty(len(runs))
    for group in {*groups}:
        inside = [name == group for name in groups]
        others = [run for run, is_inside in zip(runs, inside, strict=True) if not is_inside]
        judged = [run for run, is_inside in zip(runs, inside, strict=True) if is_inside]
        result[inside] = predicted_seconds(judged, machine, fit(others, machine, only).constants)
    return result


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
        content = read_json(path, "`meshmark calibrate` writes one")
        file = read_file(content, str(path))
        start = made(path.stem, file)
        rows, runs = expressed(read_tables(args.runs), start, file.same_devices)
        found = fit(runs, start, args.only)
    fitted = errors_of(
        predicted_seconds(runs, start, found.constants).tolist(), [run.step_seconds or 0.0 for run in runs]
    )
    held_out = held_out_errors(rows, runs, start, args.only)
    lines = errors_table({"the runs that were fitted": fitted, **held_out})
    if not held_out:
        lines.append("these errors are in sample: no model and no cluster could be left out of the fit")
    files, lines = {}, [*constants_table(found), "", *lines]
    if args.out:
        source = f"fitted to {len(runs)} runs of {', '.join(path.name for path in args.runs)}"
        source += "" if held_out else f"; {IN_SAMPLE}"
        error = [fitted, *held_out.values()][-1].mean
        sources = [row.get("source", "") for row in rows]
        files = {args.out: as_file(content, found.constants, error, source, sources)}
        lines.append("")
    write_then_print(files, "\n".join(lines), named=True)


def expressed(
    rows: Sequence[TableRow], start: Machine, kinds: Collection[str]
) -> tuple[list[TableRow], list[PublishedRun]]:
    """The rows that the formulas know, that were measured, and that are of a machine, and their runs.

    Args:
        rows: of tables.
        start: the machine, whose stack counts.
        kinds: of devices that have the specifications of the machine.
    """
    kept: list[TableRow] = []
    runs: list[PublishedRun] = []
    for number, row in enumerate(rows, 1):
        try:
            one = run_of(row)
        except Infeasible as error:
            log(f"left out: row {number}: {error}")
            continue
        if one.stack.fitted_as != start.stack.name:
            log(f"left out: row {number}: it is of {one.stack.name}, and machine {start.name} of {start.stack.name}")
        elif one.kind not in kinds:
            log(f"left out: row {number}: it is of {one.kind}, and machine {start.name} of {', '.join(kinds)}")
        elif one.step_seconds:
            kept.append(row)
            runs.append(one)
    return kept, runs


def log(text: str) -> None:
    """Print what a fit does without, before it is done, to stderr: files are written before anything on stdout."""
    print(text, file=sys.stderr)


def constants_table(found: Fit) -> list[str]:
    """Lines: each constant with its plausible range, and whether it lies at an end of it."""
    notes = {**dict.fromkeys(found.at_edges, "at an end of its range"), **dict.fromkeys(found.kept, "not fitted")}
    rows = [("constant", "value", "from", "to", "")]
    for name, value in dataclasses.asdict(found.constants).items():
        rows.append((name, f"{value:.4g}", f"{RANGES[name].low:.4g}", f"{RANGES[name].high:.4g}", notes.get(name, "")))
    return aligned(rows, [*"<", *">" * 3, "<"])


def held_out_errors(
    rows: Sequence[TableRow], runs: Sequence[PublishedRun], start: Machine, only: Collection[str]
) -> dict[str, Errors]:
    """Errors of runs whose model, or, last, whose cluster was left out of the fit; empty if there is one of each."""
    guesses = {}
    for name, key in (("models", model_of), ("clusters", cluster_of)):
        if len({*(groups := [key(row) for row in rows])}) > 1:
            try:
                guesses[f"{name} that were left out"] = left_out(runs, groups, start, only)
            except ValueError as error:
                log(f"without one of the {name}: {error}")
    measured = [run.step_seconds or 0.0 for run in runs]
    return {name: errors_of(seconds.tolist(), measured) for name, seconds in guesses.items()}


def errors_table(errors: Mapping[str, Errors]) -> list[str]:
    """Lines of the errors."""
    lines = [("predictions of", "runs", "mean error", "median", "bias", "rank correlation")]
    # Without regret, the last cell: these runs are of several works.
    lines += [(name, *error_cells(found)[:-1]) for name, found in errors.items()]
    return aligned(lines, ["<", *">" * 5])
