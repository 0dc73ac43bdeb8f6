"""The machine at hand, measured: probes are timed interleaved, and what they show becomes a machine."""

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax

from benchmarks.calibration import probes, small_steps
from benchmarks.calibration.fits import (
    START,
    Timing,
    attention,
    fitted,
    links,
    matmuls,
    packed_matmuls,
    predicted,
    rate,
    waits,
)
from benchmarks.calibration.probes import Probe, Timed
from benchmarks.devices.chips import Chip
from benchmarks.explain.memory import states_budget_bytes
from benchmarks.run.interleaved import BlockTimes, time_interleaved
from benchmarks.run.measure import steps_per_block
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.published import Run
from benchmarks.seconds.stack import MESHMARK, VIRTUAL, Passes, Stack
from strategies.backends.backend import are_virtual, platform_of
from strategies.core.sizes import BYTES

ROUNDS = 5
GROUPS = 2, 4, 8
FITTED = "memory_efficiency", "kernel_seconds"
SHARED = "kept_bytes", "logit_bytes", "alone_launches", "skew", "step_skew"
ALONE = "attention_efficiency", "optimizer_bytes"
"""What small steps show, in which all of these act together: of all devices, of those that share a host, and of others.
"""


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        machine: of the measured constants.
        timings: of all probes.
        runs: the small steps.
        missing: what could not be measured.
        at_edges: names of what was fitted and lies at an end of its range.
    """

    machine: Machine
    timings: Sequence[Timing]
    runs: Sequence[Run]
    missing: Sequence[str]
    at_edges: Sequence[str]


class Setting(NamedTuple):
    """The devices at hand: how many, whether they share a host, what runs on them, and the dtype of their matmuls."""

    devices: int
    shared: bool
    stack: Stack
    dtype: str


def setting() -> Setting:
    """The devices at hand."""
    shared = are_virtual(jax.devices())
    return Setting(jax.device_count(), shared, VIRTUAL if shared else MESHMARK, "float32" if shared else "bfloat16")


def measured(name: str, say: Callable[[str], None]) -> Measured:
    """Measure the devices at hand.

    Args:
        name: of the machine.
        say: prints a line about progress.
    """
    here = setting()
    steps = [*small_steps.steps(here.devices, here.stack, here.dtype)]
    all_probes = [*_probes(here), *(probe for probe, _ in steps)]
    say(f"timing {len(all_probes)} probes on {here.devices} devices, interleaved")
    timings = timed(all_probes)
    runs = [run_of(each.seconds) for (_, run_of), each in zip(steps, timings[-len(steps) :], strict=True)]
    machine, missing = machine_of(name, timings, here)
    names = (*FITTED, *(SHARED if here.shared else ALONE))
    at_edges: Sequence[str] = ()
    for _ in range(2):  # measured passes depend on the memory efficiency, and the other way round
        machine, at_edges = fitted(runs, with_passes(machine, timings), names)
    machine = with_passes(machine, timings)
    return Measured(replace(machine, error=_error(runs, machine, names)), timings, runs, missing, at_edges)


def with_passes(machine: Machine, timings: Sequence[Timing]) -> Machine:
    """The machine with measured passes over scores and fresh memory, as bytes that take as long to stream."""
    fresh, attending, cold, transposed = (
        [each for each in timings if each.kind == kind] for kind in ("allocation", "attention", "cold", "transpose")
    )
    if not machine.stack.shared:
        return machine
    streaming = machine.reached.memory_bytes_per_second
    flops, score_seconds, matrix_seconds = attention(attending, shared=True)
    planned = machine.stack.score_bytes
    per_byte = score_seconds * streaming / (sum(planned) * BYTES["float32"] / 2)
    stack = replace(
        machine.stack,
        fresh_bytes=streaming / rate(fresh, shared=True),
        score_bytes=Passes(*(per_byte * each for each in planned)),
        matrix_flops=matrix_seconds * flops,
        transposed_bytes=streaming / rate(transposed, shared=True),
        cold_bytes=max(1.0, streaming / rate(cold, shared=True)),
        cache_bytes=cache_bytes(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    constants = replace(machine.constants, attention_efficiency=flops / machine.matmul_flops_per_second)
    return replace(machine, stack=stack, constants=constants)


def timed(all_probes: Sequence[Probe]) -> list[Timing]:
    """Median seconds of probes, timed interleaved."""
    trainings = {str(index): Timed(probe) for index, probe in enumerate(all_probes)}
    times = {name: BlockTimes(steps_per_block(each)) for name, each in trainings.items()}
    time_interleaved(trainings, times, ROUNDS, begin=lambda name: None)
    for each in times.values():
        if each.error:
            raise each.error
    return [
        Timing(
            *(each.kind, each.devices, each.work, each.calls, each.inverse_dim, each.scores, each.matrices),
            *(statistics.median(blocks.seconds), each.inverse_columns, each.inverse_transposed),
        )
        for each, blocks in zip(all_probes, times.values(), strict=True)
    ]


def machine_of(name: str, timings: Sequence[Timing], here: Setting) -> tuple[Machine, list[str]]:
    """The machine that probes show, and what they do not show."""
    of = {kind: [each for each in timings if each.kind == kind] for kind in {each.kind for each in timings}}
    stack, matmul_dim = here.stack, 0.0
    if here.shared:
        flops, columns, transposed = packed_matmuls(of["matmul"])
        stack = replace(stack, column_dim=columns, transposed_dim=transposed)
    else:
        flops, matmul_dim = matmuls(of["matmul"])
    streaming = rate(of["stream"], shared=here.shared)
    missing = ["the network between hosts; tell `meshmark advise` with --set inter_host_bandwidth=10Gbit/s"]
    exchanged = [each for each in timings if each.calls]
    bandwidth, latency, again = links(exchanged, shared=here.shared) if exchanged else (streaming, 0.0, 0.0)
    if not exchanged:
        missing.append("links: there is one device; they are taken to be as fast as its memory")
    chip = Chip(
        platform=platform_of(jax.devices()[0]),  # pyright: ignore[reportArgumentType]: no others can be calibrated
        flops_per_second=flops,
        memory_bytes=2 * (states_budget_bytes() or 0),
        memory_bytes_per_second=streaming,
        link_bytes_per_second=bandwidth,
        torus_dims=0,
        ring_multiple=0,
        slice_chips=0,
        network_bytes_per_second=0.0,
        source="meshmark calibrate",
    )
    dispatch = statistics.median(each.seconds for each in of["dispatch"])
    constants = replace(START, matmul_dim=matmul_dim, link_seconds=latency, step_seconds=dispatch)
    stack = replace(stack, again_seconds=again, wait_seconds=waits(of.get("turn", []), latency, again))
    return Machine(name, chip, flops, 0, stack, constants, 0.0, "meshmark calibrate"), missing


def cache_bytes() -> int:
    """Bytes of the largest cache of the first core, as Linux states them; 0 where it does not."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)


def _probes(here: Setting) -> Iterator[Probe]:
    if here.shared:
        yield from probes.matmuls(here.devices, here.dtype, 1, probes.NARROW)
    else:
        yield from probes.matmuls(here.devices, here.dtype, probes.LARGER)
    yield from probes.streams(here.devices)
    yield from probes.dispatches(here.devices)
    if here.shared:
        yield from probes.attentions(here.devices)
        yield from probes.transposes(here.devices)
        yield from probes.cold_streams(here.devices)
        yield from probes.allocations()
        yield from probes.turns(here.devices)
    for count in GROUPS:
        if count <= here.devices:
            yield from probes.collectives(count)


def _error(runs: Sequence[Run], machine: Machine, names: Sequence[str]) -> float:
    """Mean error of predictions of each small step by constants that are fitted to the others."""
    errors = []
    for index, run in enumerate(runs):
        others, _ = fitted([*runs[:index], *runs[index + 1 :]], machine, names)
        errors.append(abs(predicted([run], others)[0] / (run.step_seconds or 1) - 1))
    return statistics.mean(errors)
