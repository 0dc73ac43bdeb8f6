"""Reads overviews of strategies, which `meshmark show --json` prints: what each device holds and sends."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from results.records.reading import RecordError
from results.records.schedules import Schedule, complete
from strategies.files import decode_json
from strategies.schema import Count, Whole, checked

Axes = tuple[str, ...]
Device = Mapping[str, int]
"""The position of a device along each mesh axis."""
Array = Literal["batch", "weights", "gradients", "optimizer state", "activations", "number"]
"""Kinds of arrays that are held or sent; a number is the loss, or a part of the gradients' norm."""
Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
MOST_DEVICES = 16
"""Most devices that fit into a picture with a column for each."""


class Held(msgspec.Struct, frozen=True):
    """An array of which each device holds a part; the fields are those of `strategies.costs.overview.Held`."""

    what: Array
    rows: Axes
    columns: Axes
    table: Axes
    held_bytes: Whole | None


class Sent(msgspec.Struct, frozen=True):
    """What one device sends for one reason; the fields are those of `strategies.costs.exchanges.Sent`."""

    what: str
    array: Array
    kind: Collective
    along: Axes
    when: str
    split: Axes
    links: tuple[tuple[Whole, Whole], ...]
    sent_bytes: Whole


class HeldArray(msgspec.Struct, frozen=True):
    """One array of a step, and how a mesh splits it; the fields are those of `strategies.costs.arrays.HeldArray`."""

    what: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[Whole, ...]
    axes: tuple[Axes, ...]
    whole_bytes: Whole
    held_bytes: Whole


class Overview(msgspec.Struct, frozen=True):
    """What the devices of a mesh hold and send; the fields are those of `strategies.costs.overview.Overview`."""

    strategy: str
    mesh: Annotated[tuple[tuple[str, Count], ...], Meta(min_length=1)]
    workload: str
    held: tuple[Held, ...]
    sent: tuple[Sent, ...] | None
    zigzag: bool
    schedule: Schedule | None
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


def read(text: str, where: str = "stdin", most_devices: int = MOST_DEVICES) -> list[Overview]:
    """Parse the printed overviews.

    Args:
        text: as it was printed.
        where: its file, for messages.
        most_devices: most devices that fit into the picture.
    """
    overviews = checked(decode_json(text, where), Annotated[list[Overview], Meta(min_length=1)], where)
    for each in overviews:
        if (devices := math.prod(size for _, size in each.mesh)) > most_devices:
            raise RecordError(f"{each.strategy} has {devices} devices; a picture has room for {most_devices}")
        require_axes(each, where)
        if each.schedule:
            complete(each.schedule, where)
    return overviews


def require_axes(overview: Overview, file: str) -> None:
    """Check that arrays are split along axes of the mesh, and have a size and axes for each dim."""
    where, axes = f"{file}: {overview.strategy}", [axis for axis, _ in overview.mesh]
    if len({*axes}) < len(axes):
        raise RecordError(f"{where}: the mesh has an axis twice")
    for array in overview.arrays:
        if not len(array.dims) == len(array.shape) == len(array.axes):
            sizes = f"{len(array.dims)} dims, {len(array.shape)} sizes and axes for {len(array.axes)}"
            raise RecordError(f"{where}: {array.name!r} has {sizes}")
    if strange := [axis for axis in used_axes(overview) if axis not in axes]:
        raise RecordError(f"{where}: the mesh has no axis {strange[0]!r}")


def used_axes(overview: Overview) -> Iterator[str]:
    """The axes that anything is split or sent along."""
    for held in overview.held:
        yield from (*held.rows, *held.columns, *held.table)
    for sent in overview.sent or ():
        yield from (*sent.along, *sent.split)
    for array in overview.arrays:
        for each in array.axes:
            yield from each
