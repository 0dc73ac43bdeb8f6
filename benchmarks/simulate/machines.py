"""Machine files: the constants of kinds of devices under software stacks, each with where its figures come from."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import jax
import msgspec
from msgspec import Meta

from benchmarks.devices.chips import CHIPS, Chip, generation
from benchmarks.devices.topology import CPU, OUR_KINDS, Topology
from benchmarks.simulate.machine import NOT_FITTED, Constants, Machine
from benchmarks.simulate.stack import Stack
from strategies.backends.backend import are_virtual, platform_of
from strategies.files import read_json
from strategies.schema import SchemaError, checked, checked_fields

FOLDER = Path(__file__).parent.parent / "devices" / "machines"
CARRIED_ERROR = 0.2
"""Assumed error of predictions for devices to which constants of other devices were carried over."""


class MachineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a machine file says.

    Attributes:
        devices: kinds of devices that it predicts, as `CHIPS` or JAX name them.
        rules: fields of a `Stack` besides its name, which is `stack`.
        specifications: fields of `Chip` that differ from those of the kind; all fields where the kind is not known.
        without: as in `Machine`.
        not_measured, measured: notes of a calibration, for people.
    """

    stack: str
    devices: Annotated[tuple[str, ...], Meta(min_length=1)]
    rules: dict[str, Any]
    specifications: dict[str, Any] = {}
    constants: dict[str, Any]
    error: Annotated[float, Meta(ge=0.0, le=100.0)]
    source: str
    without: dict[str, dict[str, float]] = {}
    not_measured: tuple[str, ...] = ()
    measured: tuple[dict[str, Any], ...] = ()

    @property
    def calibrated(self) -> bool:
        """Whether all specifications were measured, instead of published."""
        return {*self.specifications} >= {field.name for field in dataclasses.fields(Chip) if field.default is MISSING}


PARTS = {"rules": Stack, "specifications": Chip, "constants": Constants}
"""Fields of a machine file -> what has their fields."""


def machine_names() -> tuple[str, ...]:
    """Names of all packaged machine files."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def machine_path(name: str) -> Path:
    """The path of a machine file, by its path or by the name of a packaged one."""
    if name.endswith(".json"):
        return Path(name)
    if name not in machine_names():
        raise ValueError(
            f"machine {name!r} is not known; known are {', '.join(machine_names())}, or a path that ends with .json"
        )
    return FOLDER / f"{name}.json"


def read_file(name: str) -> MachineFile:
    """The content of a machine file, by its path or by the name of a packaged one."""
    path = machine_path(name)
    return checked_file(read_json(path, "`meshmark calibrate` writes one"), str(path))


def checked_file(content: Any, where: str) -> MachineFile:
    """The content of the machine file named `where`."""
    if isinstance(content, dict) and (unknown := {*content} - {*MachineFile.__struct_fields__}):
        way_out = "remove it, or write the file again with `meshmark calibrate` or `meshmark fit`"
        raise SchemaError(f"{where} has an unknown field {min(unknown)!r}; {way_out}")
    file = checked(content, MachineFile, where)
    for part, kind in PARTS.items():
        given, hints = getattr(file, part), get_type_hints(kind, include_extras=True)
        known = sorted({*hints} - {"name"})
        if unknown := sorted({*given} - {*known}):
            raise SchemaError(f"{where}: {part} has {', '.join(unknown)}; it can have {', '.join(known)}")
        needed = hints if kind is Constants else given
        checked_fields(given, {name: hints[name] for name in needed}, f"{where}: {part}")
    return file


@cache
def machine(name: str, kind: str | None = None) -> Machine:
    """The machine of a name or of a machine file's path, for one kind of devices; by default the first of the file.

    To a kind that the file does not name its constants are carried over, with an assumed error.
    """
    return made(machine_path(name).stem, read_file(name), kind)


@cache
def nearest_machine(kind: str, stack: str) -> Machine:
    """The machine whose packaged file names such devices under a stack, or else, its constants carried over, a similar
    one: of the same platform, rather of the same generation, and rather of a file for many kinds.
    """
    files = {name: file for name in machine_names() if (file := read_file(name)).stack == stack}
    firsts = {name: file.devices[0] for name, file in files.items()}
    alike = [name for name, first in firsts.items() if kind in CHIPS and _same_platform(first, kind)]
    if not alike:
        known = ", ".join(machine_names())
        raise ValueError(f"no machine has devices {kind!r} under {stack}; name one of {known}")
    near = {name: (kind in files[name].devices, generation(firsts[name]) == generation(kind)) for name in alike}
    return machine(max(alike, key=lambda name: (*near[name], len(files[name].devices))), kind)


def _same_platform(kind: str, other: str) -> bool:
    """Whether both are GPUs, or both TPUs; kinds that are not known are anything."""
    return kind not in CHIPS or other not in CHIPS or bool(CHIPS[kind].torus_dims) == bool(CHIPS[other].torus_dims)


def made(name: str, file: MachineFile, kind: str | None = None) -> Machine:
    """The machine of a file, as `machine` makes it."""
    if kind and kind not in (*file.devices, *map(OUR_KINDS.get, file.devices)):
        name, file = f"{name} on {kind}", _carried(name, file, kind)
    chosen = kind or file.devices[0]
    if chosen not in CHIPS and not file.calibrated:
        raise ValueError(f"machine {name}: chip {chosen!r} is not known; known are {', '.join(CHIPS)}")
    chip = Chip(**file.specifications) if file.calibrated else dataclasses.replace(CHIPS[chosen], **file.specifications)
    if chip.torus_dims and not chip.ring_multiple:
        raise ValueError(f"machine {name}: ring_multiple is 0; it must be at least 1 where there is a torus")
    stack = checked({"name": file.stack, **file.rules}, Stack, f"machine {name}: rules")
    return Machine(name, chip, stack, Constants(**file.constants), file.error, file.source, file.without)


def _carried(name: str, file: MachineFile, kind: str) -> MachineFile:
    """A file's constants with the specifications of another kind. The error is assumed, and the source says so."""
    if file.calibrated:
        problem = f"machine {name} was measured on {file.devices[0]}, whose rates are not those of {kind}"
        raise ValueError(f"{problem}; calibrate on {kind}, or omit --machine to use a packaged file")
    if not _same_platform(file.devices[0], kind):
        raise ValueError(f"machine {name} is one of {CHIPS[file.devices[0]].platform} devices, and {kind} is not")
    source = f"{NOT_FITTED}: constants of {name}, carried over to {kind}"
    changes = {"devices": (kind,), "specifications": {}, "error": CARRIED_ERROR, "source": source, "without": {}}
    return msgspec.structs.replace(file, **changes)


def as_json(file: MachineFile) -> str:
    """The text of a machine file, with constants to four digits; sources are sorted."""

    def rounded(figures: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.4g}") for name, value in figures.items()}

    without = {name: rounded(own) for name, own in sorted(file.without.items())}
    changes = {"constants": rounded(file.constants), "error": round(file.error, 4), "without": without}
    return json.dumps(msgspec.to_builtins(msgspec.structs.replace(file, **changes)), indent=2) + "\n"


MEASURED_ONLY = "virtual CPU devices share the cores of a host, so their steps are measured, not predicted"


def machine_for_run(name: str, topology: Topology | None) -> Machine:
    """The machine of a name or file that predicts steps on a topology, or else on the devices of this process."""
    if topology.is_virtual if topology else are_virtual(jax.local_devices()):
        raise ValueError(f"--machine {name}: {MEASURED_ONLY}; remove --machine")
    if topology:
        kind, platform = topology.kind, topology.platform
    else:
        here = jax.devices()[0]
        kind, platform = here.device_kind, platform_of(here)
    found = machine(name) if platform == CPU else machine(name, OUR_KINDS.get(kind, kind))
    if found.chip.platform != platform:
        raise ValueError(f"machine {found.name} is one of {found.chip.platform} devices, and these are {platform}")
    return found
