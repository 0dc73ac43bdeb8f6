"""Fits the constants of a machine to measured runs, by robust least squares of logarithms, with cross-validation.

meshmark fit results/published/megatron_a100_clusters.csv --machine a100_megatron
"""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from benchmarks.cli.accuracy import Errors, errors_of
from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import log, require_apart, require_file, write_then_print
from benchmarks.cli.tables import aligned
from benchmarks.simulate.machine import RANGES, START, Constants, Machine
from benchmarks.simulate.machines import MachineFile, as_json, machine, machine_path, read_file
from benchmarks.simulate.predict import TableRow, error_cells, read_rows, seconds_on
from benchmarks.simulate.published import PublishedRun, run_of

OUTLIER = 0.1
"""Errors far above this fraction hardly count (Cauchy's loss), because published runs have faults."""
PRIOR = 0.03
"""A constant that moves over its whole range counts as such an error of a source with one run."""
EDGE = 0.01
"""A constant this near to an end of its range, as a fraction of the range, is reported."""


class Fit(NamedTuple):
    """Constants, and which of them were fitted, and lie at an end of their range: the model lacks something."""

    constants: Constants
    fitted: tuple[str, ...]
    at_edges: tuple[str, ...]


Machines = Callable[[str], Machine]
"""Kind of devices, as a run names it -> the machine of a file with the specifications of these devices."""


def predicted_seconds(runs: Sequence[PublishedRun], machines: Machines, constants: Constants) -> np.ndarray:
    """Predicted seconds of runs on machines with other constants."""
    return np.array([seconds_on(run, dataclasses.replace(machines(run.kind), constants=constants)) for run in runs])


def seconds_of(runs: Sequence[PublishedRun]) -> list[float]:
    """Measured seconds of runs."""
    return [run.step_seconds or 0.0 for run in runs]


def fit(runs: Sequence[PublishedRun], machines: Machines, only: Collection[str] = ()) -> Fit:
    """Fit constants, by default all on which runs depend, to measured seconds; sources weigh the root of their runs."""
    if unknown := {*only} - {*RANGES}:
        raise ValueError(f"{', '.join(sorted(unknown))} is not a constant; the constants are {', '.join(RANGES)}")
    if not runs:
        raise ValueError("no measured row of this stack and device can be expressed; add rows with step_seconds")
    measured, known = np.array(seconds_of(runs)), machines(runs[0].kind).constants
    counts = Counter(run.source for run in runs)
    weights = 1 / np.sqrt([counts[run.source] for run in runs])
    free = [name for name in dict.fromkeys(only or RANGES) if depends(runs, machines, name)]
    if not free:
        raise ValueError(f"no prediction of these runs depends on {', '.join(only)}; name other constants")
    if len(runs) < len(free):
        raise ValueError(f"{len(runs)} runs cannot fix {len(free)} constants; pass {len(free)} runs or more")
    low, high, start = np.array([RANGES[name] for name in free]).T

    def constants_at(place: np.ndarray) -> Constants:
        return dataclasses.replace(known, **dict(zip(free, (low + place * (high - low)).tolist(), strict=True)))

    start = (start - low) / (high - low)  # where a constant stays that hardly matters

    def errors(place: np.ndarray) -> np.ndarray:
        found = np.log(predicted_seconds(runs, machines, constants_at(place)) / measured)
        sizes = np.sign(found) * OUTLIER * np.sqrt(weights * np.log1p((found / OUTLIER) ** 2))
        return np.concatenate([sizes, PRIOR * (place - start)])

    begin = np.clip(start, 2 * EDGE, 1 - 2 * EDGE)
    found = least_squares(errors, begin, bounds=(0, 1), diff_step=1e-3, max_nfev=50)
    at_edges = [name for name, place in zip(free, found.x, strict=True) if min(place, 1 - place) < EDGE]
    return Fit(constants_at(found.x), tuple(free), tuple(at_edges))


def depends(runs: Sequence[PublishedRun], machines: Machines, name: str) -> bool:
    """Whether any prediction changes with a constant."""
    predictions = [
        predicted_seconds(runs, machines, dataclasses.replace(START, **{name: value}))
        for value in (RANGES[name].low, RANGES[name].high)
    ]
    return bool(np.any(predictions[0] != predictions[1]))


def left_out(runs: Sequence[PublishedRun], machines: Machines, only: Collection[str] = ()) -> dict[str, Constants]:
    """Constants by a fit without the runs of a source, for each source of which the others have runs enough."""
    found = {}
    for source in dict.fromkeys(run.source for run in runs):
        try:
            found[source] = fit([run for run in runs if run.source != source], machines, only).constants
        except ValueError as error:
            log(f"without {source}: {error}")
    return found


def main(args: argparse.Namespace) -> None:
    """Fit a machine's constants to the runs of tables, and report the errors of runs that a fit has not seen."""
    with refusing():
        path = machine_path(args.machine)
        if args.out:
            require_apart({"--out": args.out}, (*args.runs, path))
            require_file(args.out, "json")
        file, machines = read_file(args.machine), partial(machine, args.machine)
        runs = expressed(read_rows(*args.runs), machine(args.machine), file.devices)
        found = fit(runs, machines, args.only)
        without = left_out(runs, machines, args.only)
        if args.otherwise:  # its own without the source
            other = machine(args.otherwise)
            without = {run.source: other.leaving_out(run.source).constants for run in runs} | without
    unseen = [run for run in runs if run.source in without]
    in_sample = predicted_seconds(runs, machines, found.constants).tolist()
    guesses = [predicted_seconds([run], machines, without[run.source]).item() for run in unseen]
    errors = {"the runs that were fitted": errors_of(in_sample, seconds_of(runs))}
    errors |= {"sources that were left out": errors_of(guesses, seconds_of(unseen))} if unseen else {}
    lines = [*constants_table(found), "", *errors_table(errors)]
    lines += [] if unseen else ["these errors are in sample: no source could be left out of the fit"]
    files = {args.out: as_json(fitted(file, found, runs, without, [*errors.values()][-1].mean))} if args.out else {}
    write_then_print(files, "\n".join([*lines, ""] if files else lines), named=True)


def fitted(
    file: MachineFile, found: Fit, runs: Sequence[PublishedRun], without: Mapping[str, Constants], error: float
) -> MachineFile:
    """The machine file with constants that were fitted to runs, and those without each of their sources."""
    sources = dict.fromkeys(run.source for run in runs)
    by_source: dict[str, dict[str, float]] = {name: {} for name in sources}
    by_source |= {name: {one: getattr(own, one) for one in found.fitted} for name, own in without.items()}
    names = ", ".join(name for name in RANGES if name in found.fitted)
    source = f"{names} fitted to {len(runs)} runs of {len(sources)} sources"
    source += "" if without else "; its error is in sample"
    constants = dataclasses.asdict(found.constants)
    return msgspec.structs.replace(file, constants=constants, error=error, source=source, without=by_source)


def expressed(rows: Sequence[TableRow], start: Machine, kinds: Collection[str]) -> list[PublishedRun]:
    """The runs of rows that the formulas know, that were measured, and that are of a machine's stack and devices."""
    runs: list[PublishedRun] = []
    for number, row in enumerate(rows, 1):
        try:
            one = run_of(row)
            for is_of, known in ((one.stack, (start.stack.name,)), (one.kind, kinds)):
                if is_of not in known:
                    raise ValueError(f"it is of {is_of}, and machine {start.name} of {', '.join(known)}")
        except ValueError as error:
            log(f"left out: row {number}: {error}")
        else:
            runs += [one] * bool(one.step_seconds)
    return runs


def constants_table(found: Fit) -> list[str]:
    """Lines: each constant with its plausible range, and whether it lies at an end of it."""
    notes = dict.fromkeys(RANGES, "not fitted") | dict.fromkeys(found.fitted, "")
    notes |= dict.fromkeys(found.at_edges, "at an end of its range")
    rows = [("constant", "value", "from", "to", "")]
    for name, value in dataclasses.asdict(found.constants).items():
        rows.append((name, f"{value:.4g}", f"{RANGES[name].low:.4g}", f"{RANGES[name].high:.4g}", notes[name]))
    return aligned(rows, [*"<", *">" * 3, "<"])


def errors_table(errors: Mapping[str, Errors]) -> list[str]:
    """Lines of the errors."""
    lines = [("predictions of", "runs", "mean error", "median", "bias", "rank correlation")]
    # Without regret, the last cell: these runs are of several works.
    lines += [(name, *error_cells(found)[:-1]) for name, found in errors.items()]
    return aligned(lines, ["<", *">" * 5])
