"""Machine files: the constants of kinds of devices under software stacks, each with where its figures come from."""

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.devices.gpus import GPU_KINDS, GPUS
from benchmarks.seconds.machine import NOT_FITTED, RANGES, Constants, Machine
from benchmarks.seconds.stack import STACKS, Passes

FOLDER = Path(__file__).parent.parent / "devices" / "machines"

ACHIEVED: Mapping[str, float] = {
    # stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS comparison table": the best of many
    # shapes in bfloat16, SXM versions.
    "a100_40gb": 267.9e12,
    "a100_80gb": 267.9e12,
    "h100": 792.1e12,
    "h200": 794.5e12,
    "b200": 1745e12,
}
"""Kind of device -> the best rate that was measured for any matmul. Of others it is the peak."""


class UnknownMachine(ValueError):
    """There is no such machine file, or it cannot be read; the message names those that exist."""


def machine_names() -> tuple[str, ...]:
    """Names of all machine files."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def machine(name: str, kind: str | None = None) -> Machine:
    """The machine of a name, or of the path of a machine file.

    Args:
        name: of a file in `FOLDER` without its suffix, or the path of another.
        kind: of its devices, if the file is for several kinds; by default the first of them.

    Raises:
        UnknownMachine: there is none, or a constant is missing or unknown.
    """
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    if not path.exists():
        raise UnknownMachine(f"machine {name!r} is not known; known are {', '.join(machine_names())}, or a path")
    return parsed(path.stem, json.loads(path.read_text()), kind)


def parsed(name: str, told: Mapping[str, Any], kind: str | None = None) -> Machine:
    """The machine that a file describes. Arguments are as for `machine`.

    Raises:
        UnknownMachine: its chip or stack is not known, or its constants are not those of `Constants`.
    """
    if wrong := {*told.get("constants", ())} ^ {*RANGES}:
        raise UnknownMachine(f"machine {name}: constants {', '.join(sorted(wrong))} are missing, or not known")
    chosen = kind if kind and "chip" not in told else chip_of(told)
    specifications = told.get("specifications", {})
    whole = {*specifications} == {field.name for field in dataclasses.fields(Chip)}
    for what, value, known in (("chip", chosen, CHIPS), ("stack", told.get("stack"), STACKS)):
        if value not in known and not (whole and what == "chip"):
            raise UnknownMachine(f"machine {name}: {what} {value!r} is not known; known are {', '.join(known)}")
    chip = Chip(**specifications) if whole else dataclasses.replace(CHIPS[chosen], **specifications)
    # Whole specifications are measured ones: their rate of matmuls is reached, and waves of tiles are in it.
    cores = GPUS[chosen]["core_count"] if chosen in GPUS and not whole else 0
    achieved = chip.flops_per_second if whole else ACHIEVED.get(chosen, chip.flops_per_second)
    constants = Constants(**told["constants"])
    passes = {
        name: Passes(*value) if isinstance(value, list) else value for name, value in told.get("passes", {}).items()
    }
    stack = dataclasses.replace(STACKS[told["stack"]], **passes)
    share = float32_share(GPU_KINDS.get(chosen, chosen), chip)  # calibrated files have JAX's names
    return Machine(name, chip, achieved, cores, stack, constants, told["error"], told["source"], share)


def float32_share(kind: str, chip: Chip) -> float:
    """Rate of float32 matmuls at full precision, as a fraction of that of bfloat16.

    GPUs do not use their matrix units. TPUs multiply six pairs of bfloat16 parts (jax.lax.Precision.HIGHEST).

    >>> round(float32_share("h100", CHIPS["h100"]) * CHIPS["h100"].flops_per_second / 1e12)
    67
    """
    if kind in GPUS:
        gpu = GPUS[kind]
        return 2 * gpu["fpus_per_core"] * gpu["core_count"] * gpu["clock_rate_ghz"] * 1e9 / chip.flops_per_second
    return 1 / 6 if chip.platform == "tpu" else 1.0


def chip_of(told: Mapping[str, Any]) -> str:
    """The kind of devices that a file describes, or the first of several."""
    return told.get("chip") or told["devices"][0]


CARRIED_ERROR = 0.2
"""Assumed error of predictions for devices to which constants of other devices were carried over."""


def machine_for(kind: str, stack: str, hosts: int) -> Machine:
    """The machine of a run.

    Args:
        kind: of device, as the run's source names it.
        stack: name of a `Stack`.
        hosts: that the run took. Some clusters and some single hosts of the same devices are different machines.

    Returns:
        The machine whose file names such devices, or, where only the stack has files for so many hosts, one with its
        constants and the specifications of these devices; its source says so.

    Raises:
        UnknownMachine: no file has this stack, or these devices have no specifications.
    """
    files = _files()
    of_stack = {name: told for name, told in files.items() if told["stack"] == stack and fits(told, hosts)}
    for name, told in of_stack.items():
        if kind in told["devices"]:
            return machine(name, kind)
    platform = CHIPS[kind].platform if kind in CHIPS else ""
    alike = {name: told for name, told in of_stack.items() if CHIPS[chip_of(told)].platform == platform}
    if not alike:
        raise UnknownMachine(f"no machine has devices {kind!r} under {stack}; name one of {', '.join(files)}")
    # Constants of a GPU of the same generation, if there are any, and rather of a file that says its numbers of hosts.
    name, told = max(alike.items(), key=lambda each: (chip_of(each[1])[0] == kind[0], "hosts" in each[1]))
    carried = {key: value for key, value in told.items() if key not in ("chip", "specifications")}
    source = f"{NOT_FITTED}: constants of {name}, carried over to {kind}"
    return parsed(f"{name} on {kind}", {**carried, "error": CARRIED_ERROR, "source": source}, kind)


def fits(told: Mapping[str, Any], hosts: int) -> bool:
    """Whether a machine file is for runs of so many hosts."""
    few, most = told.get("hosts", [1, 10**6])
    return few <= hosts <= most


@cache
def _files() -> Mapping[str, Mapping[str, Any]]:
    """What all machine files say, by name. A table asks for each of its rows."""
    return {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in machine_names()}


def as_file(told: Mapping[str, Any], constants: Constants, error: float, source: str) -> str:
    """The text of a machine file with other constants, to four digits."""
    figures = {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(constants).items()}
    described = {**told, "constants": figures, "error": round(error, 4), "source": source}
    return json.dumps(described, indent=2) + "\n"
