"""Constants of a machine from the seconds of probes and of small steps."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, nnls

from benchmarks.seconds.fitting import EDGE, OUTLIER
from benchmarks.seconds.machine import RANGES, Constants, Machine, Range
from benchmarks.seconds.network import touched
from benchmarks.seconds.predicted import predict_seconds
from benchmarks.seconds.published import Run
from benchmarks.seconds.stack import MESHMARK, VIRTUAL

START = Constants(
    matmul_efficiency=1.0,
    matmul_dim=0.0,
    attention_efficiency=0.3,
    memory_efficiency=0.3,
    kernel_seconds=3e-6,
    link_efficiency=1.0,
    link_seconds=0.0,
    network_efficiency=1.0,
    network_seconds=0.0,
    step_seconds=0.0,
)
CALIBRATED: Mapping[str, Range] = {
    # No kernel streams faster than the probe that does nothing else; small and strided ones are far slower.
    "memory_efficiency": Range(0.02, 1.0, START.memory_efficiency),
    # From a function call of the host to the launch of a kernel by a host that is busy.
    "kernel_seconds": Range(1e-7, 1e-4, START.kernel_seconds),
    "attention_efficiency": Range(0.1, 1.0, START.attention_efficiency),
    # AdamW reads four float32 arrays and writes three; as much again and more if it is not one kernel.
    "optimizer_bytes": Range(28, 80, MESHMARK.optimizer_bytes),
    # What one kernel writes and another reads is counted whether it is kept or not. If the first writes it into the
    # stack of all layers, keeping costs nothing; at most each byte is copied into memory that the system provides.
    "kept_bytes": Range(0.01, 32, VIRTUAL.kept_bytes),
    # Float32 logits are written, read for their maximum and their sum, and read for their gradient, which is written.
    # A core takes the exponential of a logit, forward and backward, while it could stream a hundred bytes or two.
    "logit_bytes": Range(16, 512, VIRTUAL.logit_bytes),
    # From devices that end together to a last one that works alone for all of its work.
    "skew": Range(0.001, 1, 0.5),
    "step_skew": Range(0.001, 1, 0.5),
    # A kernel costs one launch, and at most one more for each of the threads that wait for each other.
    "alone_launches": Range(1, 32, VIRTUAL.alone_launches),
}
"""What calibration fits to small steps: plausible values, and where a fit starts."""


class Fitted(NamedTuple):
    """A machine whose constants are fitted, and the names of those that lie at an end of their range."""

    machine: Machine
    at_edges: tuple[str, ...]


class Timing(NamedTuple):
    """The measured seconds of a probe; other fields are as of `probes.Probe`."""

    kind: str
    devices: int
    work: float
    calls: int
    inverse_dim: float
    scores: float
    matrices: float
    seconds: float
    inverse_columns: float = 0.0
    inverse_transposed: float = 0.0


def rate(timings: Sequence[Timing], *, shared: bool) -> float:
    """Median work per second: of a device, or of all devices together where they share a host."""
    return statistics.median(each.work * (each.devices if shared else 1) / each.seconds for each in timings)


def matmuls(timings: Sequence[Timing]) -> tuple[float, float]:
    """FLOPs per second of large matmuls of a device, and `Constants.matmul_dim`."""
    flops, dim = _rate_and_dims([(each.work / each.seconds, each.inverse_dim) for each in timings])
    return flops, dim


def packed_matmuls(timings: Sequence[Timing]) -> tuple[float, float, float]:
    """FLOPs per second of large matmuls of a host, `Stack.column_dim` and `Stack.transposed_dim`."""
    flops, column, transposed = _rate_and_dims(
        [(each.work * each.devices / each.seconds, each.inverse_columns, each.inverse_transposed) for each in timings]
    )
    return flops, column, transposed


def _rate_and_dims(found: Sequence[tuple[float, ...]]) -> Sequence[float]:
    """FLOPs per second of large matmuls, and the dims at which others take twice as long.

    They are fitted by least squares of relative errors.

    Args:
        found: FLOPs per second of each matmul, and one over each of its dims.
    """
    rows = np.array(found)
    rows[:, 1:] *= rows[:, :1]
    (per_flop, *per_dims), _ = nnls(rows, np.ones(len(rows)))
    return [float(each / per_flop) for each in (1.0, *per_dims)]


def attention(timings: Sequence[Timing], *, shared: bool) -> tuple[float, float, float]:
    """FLOPs per second of attention's matmuls, seconds of a score, and of a matrix of their batches.

    They are fitted by least squares of relative errors.
    """
    scale = [(each.devices if shared else 1) / each.seconds for each in timings]
    rows = [
        (each.work * times, each.scores * times, each.matrices * times)
        for each, times in zip(timings, scale, strict=True)
    ]
    (per_flop, per_score, per_matrix), _ = nnls(np.array(rows), np.ones(len(rows)))
    return float(1 / max(per_flop, 1e-15)), float(per_score), float(per_matrix)


def links(timings: Sequence[Timing], *, shared: bool) -> tuple[float, float, float]:
    """Bytes per second of collectives, their seconds of latency, and `Stack.again_seconds`.

    They are fitted by least squares of relative errors. Where devices share a host these are of all devices together:
    each adds its own latency and bytes.
    """
    rows = []
    for each in timings:
        steps = 1 if each.kind == "permute" and not shared else each.devices - 1
        scale = (each.devices if shared else 1) / each.seconds
        moved = each.work * (touched(each.kind, each.devices) if shared else 1)
        rows.append((scale * each.calls * steps, scale * moved, shared * each.calls / each.seconds))
    (latency, per_byte, wait), _ = nnls(np.array(rows), np.ones(len(rows)))
    return 1 / max(per_byte, 1e-15), float(latency), float(wait)


def waits(timings: Sequence[Timing], latency: float, least: float) -> float:
    """`Stack.wait_seconds`: the seconds of a collective after any work, of rounds with more and more work before it.

    Args:
        timings: work and a permutation, which all devices wait for; there may be none.
        latency: of a step of a collective of one device.
        least: the wait in a collective without work before it.
    """
    if not timings:
        return least
    rows = np.array([(each.work / each.seconds, 1 / each.seconds) for each in timings])
    (_, seconds), _ = nnls(rows, np.ones(len(rows)))
    devices = timings[0].devices
    return max(least, float(seconds) - devices * (devices - 1) * latency)


def predicted(runs: Sequence[Run], machine: Machine) -> np.ndarray:
    """Predicted seconds of steps."""
    return np.array([predict_seconds(run.cost, machine, run.topology).step_seconds for run in runs])


def fitted(runs: Sequence[Run], machine: Machine, names: Sequence[str]) -> Fitted:
    """The machine with some of its constants and of the bytes of its stack fitted to measured steps.

    The fit is by robust least squares of logarithms.

    Args:
        runs: measured steps.
        machine: with values for what is not fitted, and where the fit starts.
        names: keys of `CALIBRATED`.
    """
    measured = np.array([run.step_seconds for run in runs])

    def changed(logs: np.ndarray) -> Machine:
        values: Mapping[str, float] = dict(zip(names, map(float, np.exp(logs)), strict=True))
        constants = {name: value for name, value in values.items() if name in RANGES}
        passes = {name: value for name, value in values.items() if name not in RANGES}
        return replace(
            machine, constants=replace(machine.constants, **constants), stack=replace(machine.stack, **passes)
        )

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.log(predicted(runs, changed(logs)) / measured)

    low, high = (np.log([getattr(CALIBRATED[name], end) for name in names]) for end in ("low", "high"))
    values = [
        getattr(machine.constants if name in RANGES else machine.stack, name) or CALIBRATED[name].start
        for name in names
    ]
    margin = EDGE * (high - low)

    def nearest(start: np.ndarray, loss: str) -> np.ndarray:
        # A fit cannot start at an end of a range, where an earlier one may have ended.
        start = np.clip(start, low + margin, high - margin)
        return least_squares(errors, start, bounds=(low, high), loss=loss, f_scale=OUTLIER).x

    # Far from the measured seconds a robust loss is flat. So it begins where a fit by squares ends.
    found = nearest(nearest(np.log(values), "linear"), "soft_l1")
    places = (found - low) / (high - low)
    at_edges = [name for name, place in zip(names, places, strict=True) if min(place, 1 - place) < EDGE]
    return Fitted(changed(found), tuple(at_edges))
