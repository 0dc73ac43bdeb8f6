"""Fit the constants of a machine to measured steps, by robust least squares of logarithms, with cross-validation."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks.simulate.machine import RANGES, START, Constants, Machine
from benchmarks.simulate.published import Run
from benchmarks.simulate.step import predict_seconds

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


def predicted(runs: Sequence[Run], machine: Machine, constants: Constants) -> np.ndarray:
    """Predicted seconds of runs on a machine with other constants."""
    other = dataclasses.replace(machine, constants=constants)
    return np.array([predict_seconds(run.cost, other, run.topology).step_seconds for run in runs])


def fit(runs: Sequence[Run], machine: Machine, only: Collection[str] = ()) -> Fit:
    """Fit the constants of a machine to the measured seconds of runs.

    Args:
        runs: measured.
        machine: with values for the constants that are not fitted.
        only: names of constants to fit; by default all on which the runs depend.

    Raises:
        ValueError: `only` has a name that is no constant, no run is measured, or fewer than there are constants to fit.
    """
    if unknown := {*only} - {*RANGES}:
        raise ValueError(f"{', '.join(sorted(unknown))} is no constant; the constants are {', '.join(RANGES)}")
    if not runs:
        raise ValueError("no row is measured and can be expressed; give rows with step_seconds")
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
        return np.log(predicted(runs, machine, constants_at(place)) / measured)

    start = [(RANGES[name].start - least) / width for name, least, width in zip(free, low, span, strict=True)]
    found = least_squares(errors, start, bounds=(0, 1), loss="cauchy", f_scale=OUTLIER, diff_step=1e-3, max_nfev=50)
    at_edges = [name for name, place in zip(free, found.x, strict=True) if min(place, 1 - place) < EDGE]
    return Fit(constants_at(found.x), tuple(at_edges), tuple(name for name in RANGES if name not in free))


def depends(runs: Sequence[Run], machine: Machine, name: str) -> bool:
    """Whether any prediction changes with a constant."""
    ends = [
        predicted(runs, machine, dataclasses.replace(START, **{name: value}))
        for value in (RANGES[name].low, RANGES[name].high)
    ]
    return bool(np.any(ends[0] != ends[1]))


def left_out(runs: Sequence[Run], groups: Sequence[str], machine: Machine, only: Collection[str] = ()) -> np.ndarray:
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
        result[inside] = predicted(judged, machine, fit(others, machine, only).constants)
    return result
