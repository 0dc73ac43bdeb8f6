"""Measures the machine at hand and writes its machine file.

meshmark calibrate --out FILE
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jax

from benchmarks.cases.selection import available_devices
from benchmarks.cli.ending import Refused, refusing
from benchmarks.cli.outputs import require_file, write_then_print
from benchmarks.cli.tables import aligned
from benchmarks.devices.attached import states_budget_bytes
from benchmarks.run import measure
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.probes import Probe, gpu_cores, probes
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.rates import Timing, calibrated
from strategies.backends.backend import platform_of

ROUNDS = 5


def timed(some: Sequence[Probe]) -> list[Timing]:
    """The timings of probes, interleaved."""
    times = measure.timed({str(number): probe for number, probe in enumerate(some)}, ROUNDS)
    medians = [statistics.median(blocks.seconds) for blocks in times.values()]
    return [probe.timing._replace(seconds=median) for probe, median in zip(some, medians, strict=True)]


def timings_table(timings: Sequence[Timing]) -> list[str]:
    """Lines: the seconds of each probe, and its work a second."""
    lines = [("probe", "dtype", "devices", "work", "us", "G/s a device")]
    for timing in timings:
        seconds, rate = f"{1e6 * timing.seconds:,.1f}", timing.work / timing.seconds / 1e9
        lines.append((timing.kind, timing.dtype, str(timing.devices), f"{timing.work:.3g}", seconds, f"{rate:,.2f}"))
    return aligned(lines, ["<", "<", *">" * 4])


def rates_table(machine: Machine) -> list[str]:
    """Lines: the specifications and the constants of the machine."""
    figures = {**dataclasses.asdict(machine.chip), **dataclasses.asdict(machine.constants)}
    return aligned([(name, f"{value:.4g}") for name, value in figures.items() if isinstance(value, int | float)])


def document(machine: Machine, timings: Sequence[Timing], missing: Sequence[str]) -> Mapping[str, Any]:
    """The machine file."""
    return {
        "stack": machine.stack.name,
        "devices": [jax.devices()[0].device_kind],
        "rules": {name: rule for name, rule in dataclasses.asdict(machine.stack).items() if name != "name"},
        "specifications": dataclasses.asdict(machine.chip),
        "constants": dataclasses.asdict(machine.constants),
        "error": machine.error,
        "source": machine.source,
        "not_measured": list(missing),
        "measured": [timing._asdict() for timing in timings],
    }


def processor() -> str:
    """The name of the processor or of the accelerator."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    from cpuinfo import get_cpu_info  # pytest-benchmark's, which takes a second

    return get_cpu_info().get("brand_raw") or platform.machine()


def main(args: argparse.Namespace) -> int:
    """Measure the devices of this machine, and write and print what was measured."""
    with refusing():
        require_file(args.out, "json")
        available_devices()
    disable_compilation_cache()
    memory_bytes = 2 * (states_budget_bytes() or 0)  # what JAX lets a process have, before probes take some of it
    begin, all_probes = time.monotonic(), [*probes()]
    print(f"timing {len(all_probes)} probes on {jax.device_count()} devices, interleaved", file=sys.stderr)
    timings = timed(all_probes)
    source = f"meshmark calibrate, {datetime.now(UTC):%Y-%m-%d}, on {processor()}, {jax.device_count()} devices"
    of = platform_of(jax.devices()[0])
    try:
        machine, missing = calibrated(args.out.stem, timings, of, memory_bytes, source, gpu_cores())
    except ValueError as error:
        print("\n".join(timings_table(timings)))
        raise Refused(str(error)) from error
    lines = [*timings_table(timings), "", *rates_table(machine), "", *(f"not measured: {fact}" for fact in missing)]
    lines.append(f"calibrated in {time.monotonic() - begin:.0f} s")
    content = json.dumps(document(machine, timings, missing), indent=1) + "\n"
    write_then_print({args.out: content}, "\n".join(lines), named=True)
    return 0
