"""Positions of a topology's devices on a mesh, in the order that steps use. No compiler is needed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jax.sharding import Mesh

from benchmarks.devices.topology import Topology
from strategies import MeshSpec
from strategies.backends.device_mesh import device_mesh, positions
from strategies.backends.topologies import DEVICES_PER_CHIP


@dataclass(frozen=True, eq=False)
class DevicePosition:
    """Stands in for a JAX device: the attributes by which JAX and backends/device_mesh.py arrange devices."""

    id: int
    platform: str
    device_kind: str
    coords: tuple[int, ...]
    core_on_chip: int
    process_index: int


def device_count(topology: Topology) -> int:
    """Number of devices of a topology.

    >>> device_count(Topology.parse("v5p:4x4x4")), device_count(Topology.parse("tpu7x:4x4x4"))
    (64, 128)
    """
    return math.prod(topology.shape) * DEVICES_PER_CHIP[topology.kind]


@cache
def topology_mesh(topology: Topology, spec: MeshSpec) -> Mesh:
    """Mesh of the positions of all devices of a topology, arranged by the code that arranges devices for steps.

    Predictions are then the same whether or not the compiler of the topology is installed. Virtual devices form a line
    on each host. GPUs are ordered by host.
    """
    return device_mesh(spec, tuple(spec.sizes), _positions(topology))


@cache
def _positions(topology: Topology) -> tuple[DevicePosition, ...]:
    """The devices in JAX's order: chips of a torus by their last coordinate first, and the cores of a chip in turn."""
    torus = bool(topology.chip and topology.chip.torus_dims)
    shape = topology.shape[::-1] if torus else topology.shape
    places = [(index, core) for index in np.ndindex(shape) for core in range(DEVICES_PER_CHIP[topology.kind])]
    return tuple(
        DevicePosition(
            id=number,
            platform=topology.platform,
            device_kind=topology.device_kind,
            coords=(*index[::-1], 0)[:3] if torus else index,
            core_on_chip=core,
            process_index=index[0] if topology.hosts > 1 else 0,
        )
        for number, (index, core) in enumerate(places)
    )


def group_along(mesh: Mesh, axes: Sequence[str]) -> list[Any]:
    """The devices of one group along some axes of a mesh."""
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    return list(mesh.devices[index].flat)


def extents(group: Iterable[Any]) -> list[int]:
    """Number of distinct coordinates of a group of devices in each dim of their torus."""
    return [len(places) for places in positions(group)]
