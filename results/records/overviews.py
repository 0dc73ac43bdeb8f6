"""Reads overviews of strategies, which `python -m strategies show --json` prints: what each device holds and sends."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from results.records.reading import RecordError
from results.records.schedules import checked

Axes = tuple[str, ...]
Device = Mapping[str, int]
"""The position of a device along each mesh axis."""
ARRAYS = "batch", "weights", "gradients", "optimizer state", "activations", "number"
"""Kinds of arrays that are held or sent; a number is the loss, or a part of the gradients' norm."""
COLLECTIVES = "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"
MOST_DEVICES = 16
"""Most devices that fit into a picture with a column for each."""
WRITTEN_BY = "print one with `python -m strategies show STRATEGY --json`"


@dataclass(frozen=True)
class Held:
    """An array of which each device holds a part; the fields are those of `strategies.costs.overview.Held`."""

    what: str
    rows: Axes
    columns: Axes
    table: Axes
    held_bytes: int | None


@dataclass(frozen=True)
class Sent:
    """What one device sends for one reason; the fields are those of `strategies.costs.exchanges.Sent`."""

    what: str
    array: str
    kind: str
    along: Axes
    when: str
    split: Axes
    links: tuple[tuple[int, int], ...]
    sent_bytes: int


@dataclass(frozen=True)
class HeldArray:
    """One array of a step, and how a mesh splits it; the fields are those of `strategies.costs.arrays.HeldArray`."""

    what: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[Axes, ...]
    whole_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class Overview:
    """What the devices of a mesh hold and send; the fields are those of `strategies.costs.overview.Overview`."""

    strategy: str
    mesh: tuple[tuple[str, int], ...]
    workload: str
    held: tuple[Held, ...]
    sent: tuple[Sent, ...] | None
    zigzag: bool
    schedule: dict[str, Any] | None
    twin: str | None
    arrays: tuple[HeldArray, ...] = ()

    @property
    def devices(self) -> list[Device]:
        """All devices; the position along the innermost axis changes fastest."""
        axes, sizes = zip(*self.mesh, strict=True)
        return [dict(zip(axes, place, strict=True)) for place in product(*map(range, sizes))]

    def part(self, device: Device, axes: Iterable[str]) -> tuple[int, int]:
        """Return the index of a device's part of an array that `axes` split, outermost first, and the number of parts.

        >>> mesh = Overview("three_d", (("data", 2), ("tensor", 4)), "", (), None, False, None, None)
        >>> mesh.part({"data": 1, "tensor": 2}, ("data", "tensor"))
        (6, 8)
        """
        index, count, sizes = 0, 1, dict(self.mesh)
        for axis in axes:
            index, count = index * sizes[axis] + device[axis], count * sizes[axis]
        return index, count

    def group(self, device: Device, axes: Axes) -> list[Device]:
        """Return the devices that differ from `device` along `axes` only, including itself."""
        return [other for other in self.devices if all(other[axis] == device[axis] for axis in {*device} - {*axes})]


def read(text: str, most_devices: int = MOST_DEVICES) -> list[Overview]:
    """Parse the printed overviews.

    Args:
        text: as it was printed.
        most_devices: most devices that fit into the picture.

    Raises:
        RecordError: the text is something else, or an overview has more devices than fit into a picture.
    """
    try:
        overviews = [overview_of(facts) for facts in json.loads(text)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"stdin is no overview of a strategy ({error!r}); {WRITTEN_BY}") from error
    for each in overviews:
        if (devices := math.prod(size for _, size in each.mesh)) > most_devices:
            raise RecordError(f"{each.strategy} has {devices} devices; a picture has room for {most_devices}")
    return overviews


def overview_of(facts: Mapping[str, Any]) -> Overview:
    """Build one overview from its JSON.

    Raises:
        KeyError, TypeError, ValueError: a key is missing or has another kind of value.
    """
    mesh = tuple((str(axis), int(size)) for axis, size in facts["mesh"])
    if not mesh or min(size for _, size in mesh) < 1:
        raise ValueError(f"the mesh is {mesh}")
    sent = facts["sent"]
    return Overview(
        strategy=str(facts["strategy"]),
        mesh=mesh,
        workload=str(facts["workload"]),
        held=tuple(held_of(each, dict(mesh)) for each in facts["held"]),
        sent=None if sent is None else tuple(sent_of(each, dict(mesh)) for each in sent),
        zigzag=bool(facts["zigzag"]),
        schedule=facts["schedule"] and checked(facts["schedule"]),
        twin=facts["twin"] and str(facts["twin"]),
        arrays=tuple(array_of(each, dict(mesh)) for each in facts["arrays"]),
    )


def held_of(facts: Mapping[str, Any], sizes: Mapping[str, int]) -> Held:
    """Build the record of a held array from its JSON."""
    held_bytes = facts["held_bytes"]
    rows, columns, table = (axes_of(facts[name], sizes) for name in ("rows", "columns", "table"))
    what = one_of(ARRAYS, facts["what"])
    return Held(what, rows, columns, table, None if held_bytes is None else int(held_bytes))


def array_of(facts: Mapping[str, Any], sizes: Mapping[str, int]) -> HeldArray:
    """Build the record of an array from its JSON.

    Raises:
        ValueError: its dims, their sizes and their axes are not equally many, or an axis is unknown.
    """
    dims, shape = tuple(map(str, facts["dims"])), tuple(map(int, facts["shape"]))
    axes = tuple(axes_of(each, sizes) for each in facts["axes"])
    if not len(dims) == len(shape) == len(axes):
        raise ValueError(f"{facts['name']!r} has {len(dims)} dims, {len(shape)} sizes and axes for {len(axes)}")
    whole_bytes, held_bytes = int(facts["whole_bytes"]), int(facts["held_bytes"])
    return HeldArray(str(facts["what"]), str(facts["name"]), dims, shape, axes, whole_bytes, held_bytes)


def sent_of(facts: Mapping[str, Any], sizes: Mapping[str, int]) -> Sent:
    """Build the record of what is sent for one reason from its JSON."""
    array, kind = one_of(ARRAYS, facts["array"]), one_of(COLLECTIVES, facts["kind"])
    along, split = axes_of(facts["along"], sizes), axes_of(facts["split"], sizes)
    links = tuple((int(sender), int(receiver)) for sender, receiver in facts["links"])
    return Sent(str(facts["what"]), array, kind, along, str(facts["when"]), split, links, int(facts["sent_bytes"]))


def axes_of(names: Sequence[str], sizes: Mapping[str, int]) -> Axes:
    """Check the names of mesh axes.

    Raises:
        ValueError: the mesh has no such axis.
    """
    if strange := [name for name in names if name not in sizes]:
        raise ValueError(f"the mesh has no axis {strange[0]!r}")
    return tuple(names)


def one_of(names: Sequence[str], name: Any) -> str:
    """Check that a name is one of `names`.

    Raises:
        ValueError: it is not.
    """
    if name not in names:
        raise ValueError(f"{name!r} is none of {', '.join(names)}")
    return name
