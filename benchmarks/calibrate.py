"""Measures the machine at hand and writes its machine file.

meshmark calibrate --out FILE
"""

import dataclasses
import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jax

from benchmarks.calibration.fits import predicted
from benchmarks.calibration.measured import Measured, measured
from benchmarks.cli import parsers
from benchmarks.cli.options import available_devices
from benchmarks.cli.refusing import refusing
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_file, save_text, short
from benchmarks.commandline.tables import aligned
from benchmarks.run.machine import disable_compilation_cache, use_virtual_devices
from benchmarks.seconds.stack import MEASURED


def report(found: Measured, seconds: float) -> list[str]:
    """The lines of the report."""
    machine, groups = found.machine, defaultdict(list)
    for each in found.timings:
        if each.work:
            groups[each.kind, each.devices].append(each)
    lines = [("probe", "devices", "work", "us", "G/s a device")]
    for (kind, devices), timings in groups.items():
        for each in timings:
            rate = each.work / each.seconds / 1e9
            lines.append((kind, str(devices), f"{each.work:.3g}", f"{1e6 * each.seconds:,.1f}", f"{rate:,.2f}"))
    guesses = predicted(found.runs, machine)
    steps = [("small step", "mesh", "ms", "by the fit")]
    for run, guess in zip(found.runs, guesses, strict=True):
        config, seconds_measured = run.cost.plan.config, run.step_seconds or 0.0
        model = f"{config.layers} x {config.embed}, sequence {config.sequence}"
        steps.append((model, str(run.cost.plan.mesh), f"{1e3 * seconds_measured:,.1f}", f"{1e3 * guess:,.1f}"))
    passes = {name: getattr(machine.stack, name) for name in MEASURED}
    constants = {**dataclasses.asdict(machine.constants), **dataclasses.asdict(machine.chip), **passes}
    notes = dict.fromkeys(found.at_edges, "at an end of its range")
    figures = [(name, f"{value:.4g}", notes.get(name, "")) for name, value in constants.items() if _is_number(value)]
    return [
        *aligned(lines, ["<", *">" * 4]),
        "",
        *aligned(steps, ["<", "<", ">", ">"]),
        "",
        *aligned(figures, ["<", ">", "<"]),
        "",
        f"mean error of small steps that the constants are not fitted to: {machine.error:.0%}",
        *(f"not measured: {each}" for each in found.missing),
        f"calibrated in {seconds:.0f} s",
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def document(found: Measured, when: datetime) -> Mapping[str, Any]:
    """The machine file."""
    machine = found.machine
    return {
        "stack": machine.stack.name,
        "devices": [jax.devices()[0].device_kind],
        "specifications": dataclasses.asdict(machine.chip),
        "passes": {name: getattr(machine.stack, name) for name in MEASURED},
        "constants": dataclasses.asdict(machine.constants),
        "error": round(machine.error, 4),
        "source": f"meshmark calibrate, {when:%Y-%m-%d}, on {processor()}, {jax.device_count()} devices",
        "at_edges": list(found.at_edges),
        "not_measured": list(found.missing),
        "measured": [each._asdict() for each in found.timings],
    }


def processor() -> str:
    """The name of the processor or of the accelerator."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    from cpuinfo import get_cpu_info  # pytest-benchmark's, which takes a second

    return get_cpu_info().get("brand_raw") or platform.machine()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the devices of this machine, and write and print what was measured.

    Returns:
        The exit status: 0. It is 2 for invalid options, and 5 for a file that cannot be written.
    """
    command = parsers.calibrate()
    asked = command.parse_args(arguments)
    use_virtual_devices()
    with refusing(command):
        require_file(asked.out)
        available_devices()
    disable_compilation_cache()
    begin = time.monotonic()
    found = measured(asked.out.stem, say=lambda text: print(text, file=sys.stderr))
    save_text(asked.out, json.dumps(document(found, datetime.now(UTC)), indent=1) + "\n")
    print("\n".join(report(found, time.monotonic() - begin)))
    print(f"wrote {short(asked.out)}")
    return 0


if __name__ == "__main__":
    run_command(main)
