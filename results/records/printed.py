"""Reads what `show --json` and `schedule --json` print: which part of each array a device holds, and schedules."""

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from results.records.reading import RecordError
from strategies.schema import Count, Whole, checked

Axes = tuple[str, ...]
Device = Mapping[str, int]
"""The position of a device along each mesh axis."""
MOST_DEVICES = 64
"""Most devices whose numbers are legible in a picture."""
PASSES = {"F": "forward", "B": "backward", "W": "gradients of weights"}
"""Kinds of operations of a stage in a tick."""
MOST_CELLS = 1400
"""Most stages or ticks in a picture: matplotlib draws at most 2^16 pixels in each direction."""


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
    """What the devices of a mesh hold; the fields are some of `strategies.costs.overview.Overview`."""

    strategy: str
    mesh: Annotated[tuple[tuple[str, Count], ...], Meta(min_length=1)]
    workload: str
    arrays: tuple[HeldArray, ...]

    @property
    def devices(self) -> list[Device]:
        """All devices; the position along the innermost axis changes fastest."""
        axes, sizes = zip(*self.mesh, strict=True)
        return [dict(zip(axes, place, strict=True)) for place in product(*map(range, sizes))]

    def part(self, device: Device, axes: Iterable[str]) -> tuple[int, int]:
        """Return the index of a device's part of an array that `axes` split, outermost first, and the number of parts.

        >>> mesh = Overview("three_d", (("data", 2), ("tensor", 4)), "", ())
        >>> mesh.part({"data": 1, "tensor": 2}, ("data", "tensor"))
        (6, 8)
        """
        index, count, sizes = 0, 1, dict(self.mesh)
        for axis in axes:
            index, count = index * sizes[axis] + device[axis], count * sizes[axis]
        return index, count


def read_overviews(content: Any, where: str = "stdin") -> list[Overview]:
    """Read printed overviews; `where` is their file, for messages."""
    overviews = checked(content, Annotated[list[Overview], Meta(min_length=1)], where)
    for each in overviews:
        if (devices := math.prod(size for _, size in each.mesh)) > MOST_DEVICES:
            raise RecordError(f"{each.strategy} has {devices} devices; a picture has room for {MOST_DEVICES}")
        require_axes(each, where)
    return overviews


def require_axes(overview: Overview, file: str) -> None:
    """Check that arrays are split along axes of the mesh, and have a size and axes for each dim."""
    where, known = f"{file}: {overview.strategy}", [axis for axis, _ in overview.mesh]
    if len({*known}) < len(known):
        raise RecordError(f"{where}: the mesh has an axis twice")
    for array in overview.arrays:
        if not len(array.dims) == len(array.shape) == len(array.axes):
            sizes = f"{len(array.dims)} dims, {len(array.shape)} sizes and axes for {len(array.axes)}"
            raise RecordError(f"{where}: {array.name!r} has {sizes}")
        for axis in (axis for axes in array.axes for axis in axes):
            if axis not in known:
                raise RecordError(f"{where}: the mesh has no axis {axis!r}")


class Operation(msgspec.Struct, frozen=True):
    """A pass of a microbatch through a chunk."""

    kind: Literal["F", "B", "W"]
    microbatch: Whole
    chunk: Whole


Cell = Annotated[list[Operation], Meta(max_length=2)]
"""What a stage does in a tick: nothing, an operation, or a forward and a backward pass."""


class Schedule(msgspec.Struct, frozen=True):
    """A schedule: the operations of each stage at each tick."""

    schedule: str
    chunks: Count
    stages: Annotated[list[Annotated[list[Cell], Meta(min_length=1)]], Meta(min_length=1)]


def read_schedule(content: Any, where: str = "stdin") -> Schedule:
    """Read a printed schedule that can be drawn; `where` is its file, for messages."""
    schedule = checked(content, Schedule, where)
    stages = schedule.stages
    if len(lengths := {len(row) for row in stages}) > 1:
        raise RecordError(f"{where}: stages have {min(lengths)} to {max(lengths)} ticks, not the same number")
    if max(len(stages), *lengths) > MOST_CELLS:
        size = f"{len(stages)} stages of {max(lengths)} ticks"
        raise RecordError(f"{where}: {size} cannot be drawn; {MOST_CELLS} of each at most")
    operations = [op for row in stages for cell in row for op in cell]
    if not operations:
        raise RecordError(f"{where} is a schedule in which nothing is done; use at least a stage and a microbatch")
    if (highest := max(op.chunk for op in operations)) >= schedule.chunks:
        raise RecordError(f"{where} has an operation of chunk {highest}, and `chunks` is {schedule.chunks}")
    return schedule
