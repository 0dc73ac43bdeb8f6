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
from msgspec import UNSET, Meta, UnsetType

from benchmarks.devices.chips import CHIPS, GPU_KINDS, GPUS, Chip, generation
from benchmarks.devices.topology import CPU, OUR_KINDS, Topology
from benchmarks.simulate.machine import CALIBRATED_RANGES, NOT_FITTED, RANGES, Constants, Machine, Range
from benchmarks.simulate.peaks import NARROW, achieved_rate, float32_share
from benchmarks.simulate.stack import Stack
from strategies.backends.backend import are_virtual, platform_of
from strategies.files import read_json
from strategies.schema import Count, Positive, SchemaError, checked

RENAMED = {
    **dict.fromkeys(("torchtitan", "KempnerForge"), "PyTorch FSDP"),
    **{"NeMo": "Megatron-Bridge", "MaxText": "meshmark"},
}
"""Names of stacks in older files -> those of today, which have the same rules."""
FOLDER = Path(__file__).parent.parent / "devices" / "machines"


class MachineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a machine file says.

    Attributes:
        stack: name of the software.
        devices: kinds of devices that it predicts, as `CHIPS` or JAX name them.
        rules: the other fields of a `Stack`; by default those of a packaged file of this stack for such devices.
        chip: the kind whose specifications it has; by default the first of `devices`.
        specifications: fields of `Chip` that differ from those of the kind; all fields where the kind is not known.
        float32_share: rate of float32 matmuls as a fraction of that of bfloat16; by default by the kind.
        cores: of a GPU, where specifications are measured and their rate of matmuls is that without waves of tiles.
        constants: all of `Constants`.
        error: mean error of predictions, as a fraction.
        source: where the figures come from.
        without: sources of published runs, as tables name them, to which constants were fitted -> the constants of a
            fit without them.
        not_measured, measured: notes of a calibration, for people.
        hosts, fitted_to: of older files. They mean nothing today.
    """

    stack: str
    devices: Annotated[tuple[str, ...], Meta(min_length=1)]
    rules: dict[str, Any] | None = None
    chip: str | None = None
    specifications: dict[str, Any] = {}
    float32_share: Positive | None = None
    cores: Annotated[int, Meta(ge=0)] = 0
    constants: dict[str, Any]
    error: Annotated[float, Meta(ge=0.0, le=100.0)]
    source: str
    without: dict[str, dict[str, float]] = {}
    not_measured: tuple[str, ...] = ()
    measured: tuple[dict[str, Any], ...] = ()
    hosts: tuple[Count, Count] | None = None
    fitted_to: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of devices that it describes, or the first of several."""
        return self.chip or self.devices[0]

    def describes(self, kind: str) -> bool:
        """Whether its error is of predictions for this kind of device, which JAX or we name."""
        return kind in {self.kind, *self.devices, *(OUR_KINDS.get(name) for name in self.devices)}

    @property
    def on_gpus(self) -> bool:
        """Whether the devices of a packaged file are GPUs."""
        return not CHIPS[self.kind].torus_dims

    @property
    def calibrated(self) -> bool:
        """Whether all specifications were measured, instead of published."""
        return {*self.specifications} >= {field.name for field in dataclasses.fields(Chip) if field.default is MISSING}


def _ranged(ranges: Mapping[str, Range]) -> type[msgspec.Struct]:
    """The schema of constants that lie in ranges."""
    kinds = [(name, Annotated[float, Meta(ge=range_.low, le=range_.high)]) for name, range_ in ranges.items()]
    return msgspec.defstruct("Constants", kinds, forbid_unknown_fields=True)


PUBLISHED_CONSTANTS, CALIBRATED_CONSTANTS = _ranged(RANGES), _ranged(CALIBRATED_RANGES)
RULES = {field.name for field in dataclasses.fields(Stack)} - {"name"}
SPECIFICATIONS = msgspec.defstruct(
    "Specifications",
    [(name, kind | UnsetType, UNSET) for name, kind in get_type_hints(Chip, include_extras=True).items()],
    forbid_unknown_fields=True,
)


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


def read_file(path: Path) -> MachineFile:
    """The content of a machine file."""
    return checked_file(read_json(path, "`meshmark calibrate` writes one"), str(path))


def checked_file(content: Any, where: str) -> MachineFile:
    """The content of the machine file named `where`. Errors are as for `read_file`."""
    if isinstance(content, dict) and (unknown := {*content} - {*MachineFile.__struct_fields__}):
        way_out = "remove it, or write the file again with `meshmark calibrate` or `meshmark fit`"
        raise SchemaError(f"{where} has an unknown field {min(unknown)!r}; {way_out}")
    file = checked(content, MachineFile, where)
    if unknown := {*(file.rules or {})} - RULES:
        raise SchemaError(f"{where}: rules has {', '.join(sorted(unknown))}; it can have {', '.join(sorted(RULES))}")
    checked(file.constants, CALIBRATED_CONSTANTS if file.calibrated else PUBLISHED_CONSTANTS, f"{where}: constants")
    checked(file.specifications, SPECIFICATIONS, f"{where}: specifications")
    return msgspec.structs.replace(file, stack=RENAMED.get(file.stack, file.stack))


@cache
def _files() -> Mapping[str, MachineFile]:
    """All packaged machine files, by name. A table asks for each of its rows."""
    return {name: read_file(machine_path(name)) for name in machine_names()}


@cache
def machine(name: str, kind: str | None = None) -> Machine:
    """The machine of a name, or of the path of a machine file.

    Args:
        name: as for `machine_path`.
        kind: of its devices, if the file is for several kinds; by default the first of them. To a kind that it does not
            name its constants are carried over, with an assumed error.
    """
    path = machine_path(name)
    return made(path.stem, read_file(path), kind)


def machine_for(kind: str, stack: str) -> Machine:
    """The machine of a run.

    Args:
        kind: of device, as the run's source names it.
        stack: name of a `Stack`.

    Returns:
        The machine whose file names such devices, or, where only the stack has files, one with its constants and the
        specifications of these devices; its source says so.
    """
    of_stack = {name: file for name, file in _files().items() if file.stack == stack}
    if found := next((name for name, file in of_stack.items() if kind in file.devices), None):
        return machine(found, kind)
    on_gpus = kind in CHIPS and not CHIPS[kind].torus_dims
    of_platform = {name: file for name, file in of_stack.items() if file.on_gpus == on_gpus}
    if kind not in CHIPS or not of_platform:
        raise ValueError(f"no machine has devices {kind!r} under {stack}; name one of {', '.join(_files())}")
    # Constants of a GPU of the same generation, if there are any, and rather of a file that is for many kinds.
    own = generation(kind)
    name = max(of_platform, key=lambda name: (generation(of_stack[name].kind) == own, len(of_stack[name].devices)))
    return made(name, of_stack[name], kind)


def made(name: str, file: MachineFile, kind: str | None = None) -> Machine:
    """The machine of a file. Arguments and errors are as for `machine`."""
    if kind and not file.describes(kind):
        return _carried(name, file, kind)
    chosen, whole = (kind if kind and not file.chip else file.kind), file.calibrated
    if chosen not in CHIPS and not whole:
        raise ValueError(f"machine {name}: chip {chosen!r} is not known; known are {', '.join(CHIPS)}")
    if not whole and bool(CHIPS[chosen].torus_dims) != bool(CHIPS.get(file.kind, CHIPS[chosen]).torus_dims):
        raise ValueError(f"machine {name} is one of {CHIPS[file.kind].platform} devices, and {chosen} is not")
    chip = Chip(**file.specifications) if whole else dataclasses.replace(CHIPS[chosen], **file.specifications)
    if chip.torus_dims and not chip.ring_multiple:
        raise ValueError(f"machine {name}: ring_multiple is 0; it must be at least 1 where there is a torus")
    known = GPU_KINDS.get(chosen, chosen)  # calibrated files have JAX's names
    return Machine(
        name,
        chip,
        # Whole specifications are measured ones: their rate of matmuls is reached.
        chip.flops_per_second if whole else achieved_rate(chosen, chip),
        GPUS[chosen]["core_count"] if chosen in GPUS and not whole else file.cores,
        _stack(name, file, chip),
        Constants(**file.constants),
        file.error,
        file.source,
        file.without,
        file.float32_share or float32_share(known, chip),
        NARROW.get(known, {}),
    )


def _stack(name: str, file: MachineFile, chip: Chip) -> Stack:
    """The stack of a file: of its own rules, or of those of a packaged file of this stack, rather for such devices."""
    if file.rules is not None:
        return checked({"name": file.stack, **file.rules}, Stack, f"machine {name}: rules")
    of_stack = {name: other.on_gpus for name, other in _files().items() if other.stack == file.stack}
    if not of_stack:
        names = ", ".join(dict.fromkeys(other.stack for other in _files().values()))
        raise ValueError(f"machine {name}: stack {file.stack!r} is not known; known are {names}; or state its rules")
    return machine(max(of_stack, key=lambda name: of_stack[name] == (chip.platform in ("cuda", "gpu")))).stack


def _carried(name: str, file: MachineFile, kind: str) -> Machine:
    """A file's constants with the specifications of another kind. The error is assumed, and the source says so."""
    if file.calibrated:
        problem = f"machine {name} was measured on {file.kind}, whose rates are not those of {kind}"
        raise ValueError(f"{problem}; calibrate on {kind}, or omit --machine to use a packaged file")
    source = f"{NOT_FITTED}: constants of {name}, carried over to {kind}"
    told = {"devices": (file.kind, kind), "error": CARRIED_ERROR, "source": source, "without": {}}
    machine = made(name, msgspec.structs.replace(file, chip=None, specifications={}, **told), kind)
    return dataclasses.replace(machine, name=f"{name} on {kind}")


CARRIED_ERROR = 0.2
"""Assumed error of predictions for devices to which constants of other devices were carried over."""


def as_json(file: MachineFile) -> str:
    """The text of a machine file, with constants to four digits; sources are sorted."""

    def rounded(figures: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.4g}") for name, value in figures.items()}

    without = {name: rounded(own) for name, own in sorted(file.without.items())}
    changes = {"constants": rounded(file.constants), "error": round(file.error, 4), "without": without}
    return json.dumps(msgspec.to_builtins(msgspec.structs.replace(file, fitted_to=(), **changes)), indent=2) + "\n"


MEASURED_ONLY = "virtual CPU devices share the cores of a host, so their steps are measured, not predicted"


def predicting_machine(name: str, topology: Topology | None) -> Machine:
    """The machine of a name or file that predicts the steps of a run.

    Args:
        name: as for `machine`.
        topology: of the devices that steps are compiled for; None for those of this process.
    """
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
