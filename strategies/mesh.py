"""MeshSpec: the one spelling of a mesh, in test ids, records, plots and errors."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from strategies.config import Infeasible

AXES = ["data", "fsdp", "pipeline", "context", "tensor"]
"""All mesh axes, outermost first: the inner ones talk most and belong on the fastest links. `register` adds others."""

Devices = Sequence[Any]
"""Of `jax.Device`, a name that type checkers do not take for a class."""


@dataclass(frozen=True)
class MeshSpec:
    """Named sizes such as `data=2,tensor=4`, in the order of `AXES`; parse and print are inverse.

    Raises:
        Infeasible: an unknown or repeated axis, a size below one, or axes out of order.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        """Refuse what does not name a mesh."""
        names = [name for name, _ in self.axes]
        if not names:
            raise Infeasible(f"a mesh needs an axis; write one as data=2,tensor=4 with axes of {', '.join(AXES)}")
        for name, size in self.axes:
            if name not in AXES:
                raise Infeasible(f"unknown mesh axis {name!r}; it can be {', '.join(AXES)}")
            if size < 1:
                raise Infeasible(f"mesh axis {name}={size}; it must be at least 1")
        if names != sorted(set(names), key=AXES.index):
            raise Infeasible(f"mesh axes {', '.join(names)} repeat or are out of order; the order is {', '.join(AXES)}")

    @classmethod
    def parse(cls, text: str) -> "MeshSpec":
        """Read a mesh as it is printed.

        >>> str(MeshSpec.parse("data=2,pipeline=2,tensor=2"))
        'data=2,pipeline=2,tensor=2'
        """
        parts = [re.fullmatch(r"([a-z]+)=([0-9]{1,9})", part) for part in text.split(",")]
        if not all(parts):
            raise Infeasible(f"mesh {text!r} cannot be read; write it as data=2,tensor=4")
        return cls(tuple((part[1], int(part[2])) for part in parts if part))

    @classmethod
    def of(cls, mesh: "MeshSpec | str") -> "MeshSpec":
        """The mesh, be it given as a text.

        Raises:
            Infeasible: as `parse`, or it is something else.
        """
        if not isinstance(mesh, MeshSpec | str):
            raise Infeasible(f"mesh {mesh!r} is a {type(mesh).__name__}; give a MeshSpec, or a text as data=2,tensor=4")
        return mesh if isinstance(mesh, MeshSpec) else cls.parse(mesh)

    def __str__(self) -> str:
        """The mesh as it is parsed."""
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Axis to size."""
        return MappingProxyType(dict(self.axes))

    @property
    def size(self) -> int:
        """Devices in the mesh."""
        return math.prod(size for _, size in self.axes)

    def split_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Those of the axes along which there are several devices.

        >>> MeshSpec.parse("data=1,tensor=4").split_axes(("data", "fsdp", "tensor"))
        ('tensor',)
        """
        return tuple(axis for axis in axes if self.sizes.get(axis, 1) > 1)

    def over(self, axes: Sequence[str], devices: Devices | None = None) -> Mesh:
        """The mesh of devices, with each of `axes`; one that the spec leaves out has size one.

        In a torus an axis has whole dims of it where it can, and else a part of one.

        Args:
            axes: of the mesh that is made.
            devices: exactly as many as the mesh has; by default the first of `jax.devices()`.

        Raises:
            Infeasible: an axis that is not among `axes`, too few devices, or another number given than the mesh has.
        """
        if strange := [name for name in self.sizes if name not in axes]:
            raise Infeasible(f"mesh {self} has the axis {strange[0]}; it can be {', '.join(axes)}")
        if devices is None:
            self._require_there()
            devices = first_devices(self.size)
        if len(devices) != self.size:
            problem = f"mesh {self} takes {self.size} devices and {len(devices)} are given"
            raise Infeasible(f"{problem}; change the mesh, the devices given, or JAX_NUM_CPU_DEVICES for virtual ones")
        shape = tuple(self.sizes.get(name, 1) for name in axes)
        types = (AxisType.Auto,) * len(shape)
        try:
            return jax.make_mesh(shape, tuple(axes), axis_types=types, devices=devices)
        except NotImplementedError:  # but for v5e it gives an axis no part of a dim
            places = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
            return Mesh(places, tuple(axes), axis_types=types)

    def _require_there(self) -> None:
        """See that there are enough devices.

        Raises:
            Infeasible: there are too few; the message says how to have more virtual ones.
        """
        there = jax.devices()
        if len(there) >= self.size:
            return
        problem = f"mesh {self} takes {self.size} devices and JAX has {len(there)}"
        if there[0].platform == "cpu":
            way_out = f"start Python with JAX_NUM_CPU_DEVICES={self.size} in the environment, or call"
            call = f'jax.config.update("jax_num_cpu_devices", {self.size})'
            raise Infeasible(f"{problem}; {way_out} {call} before anything else of JAX: the first use fixes the number")
        raise Infeasible(f"{problem}; take a smaller mesh")


def first_devices(count: int, devices: Devices | None = None) -> list[Any]:
    """So many devices to spread over: the first, or of several processes as many of each, one process after another.

    One device is this process's own: what it computes needs nobody.

    Raises:
        Infeasible: devices that the processes cannot have equal parts of.
    """
    devices = jax.devices() if devices is None else devices
    processes = sorted({device.process_index for device in devices})
    if count == 1:
        return [device for device in devices if device.process_index == jax.process_index()][:1]
    if count % len(processes):
        few = f"{len(processes)} processes do not have equal parts of {count} devices"
        raise Infeasible(f"{few}; take one device, or a multiple of {len(processes)}")
    each = count // len(processes)
    return [
        device
        for process in processes
        for device in [device for device in devices if device.process_index == process][:each]
    ]


def are_virtual(devices: Collection[Any]) -> bool:
    """Whether these are several CPU devices of XLA, which share the cores and may wait for each other forever."""
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"


def mark_varying(tree: Any, axes: str | tuple[str, ...]) -> Any:
    """Mark each device's copy of these arrays as its own, inside `jax.shard_map`; the values stay as they are.

    Autodiff sums the gradients of an array over the axes along which it does not vary. Those of a marked array stay
    apart, one for each device, until a strategy sums them.
    """
    return jax.tree.map(lambda array: lax.pcast(array, axes, to="varying"), tree)


def factorisations(axes: Sequence[str], devices: int) -> Iterator[MeshSpec]:
    """Every mesh of exactly this many devices over some of the axes, none of size one (one device: the first axis).

    >>> [str(mesh) for mesh in factorisations(("data", "tensor"), 4)]
    ['tensor=4', 'data=2,tensor=2', 'data=4']
    """

    def cut(names: Sequence[str], left: int) -> Iterator[tuple[tuple[str, int], ...]]:
        if not names:
            yield from [()] if left == 1 else []
            return
        for size in range(1, left + 1):
            if left % size == 0:
                first = ((names[0], size),) if size > 1 else ()
                yield from (first + rest for rest in cut(names[1:], left // size))

    if devices == 1:
        yield MeshSpec(((axes[0], 1),))
    else:
        yield from map(MeshSpec, cut(axes, devices))
