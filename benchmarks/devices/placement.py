"""Positions of a topology's devices on a mesh, in the order that JAX assigns or, without a compiler, by arithmetic."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from jax.sharding import Mesh

from benchmarks.devices.topology import Topology
from strategies import MeshSpec
from strategies.backends.topologies import DEVICES_PER_CHIP
from strategies.backends.torus import in_rings
from strategies.device_mesh import device_mesh


@dataclass(frozen=True, eq=False)
class DevicePosition:
    """Stands in for a JAX device: the attributes that roofline.py and strategies/backends/torus.py read."""

    coords: tuple[int, ...]
    process_index: int
    device_kind: str


def device_count(topology: Topology) -> int:
    """Number of devices of a topology.

    >>> device_count(Topology.parse("v5p:4x4x4")), device_count(Topology.parse("tpu7x:4x4x4"))
    (64, 128)
    """
    return math.prod(topology.shape) * DEVICES_PER_CHIP[topology.kind]


@cache
def topology_mesh(topology: Topology, spec: MeshSpec) -> Mesh:
    """Mesh of all devices of a topology, in the order that the steps use.

    If the compiler of the topology is not installed, the mesh holds `DevicePosition`s in row-major order of the
    topology's shape, on v5e and v6e with the same rings as steps. Virtual devices form a line on each host. GPUs are
    ordered by host.
    """
    if topology.chip and topology.compiler_version:
        return device_mesh(spec, tuple(spec.sizes), topology.devices())
    positions = [
        DevicePosition(coords, coords[0] if topology.hosts > 1 else 0, topology.device_kind)
        for coords in np.ndindex(topology.shape)
        for _ in range(DEVICES_PER_CHIP[topology.kind])
    ]
    axes = tuple(spec.sizes)
    return Mesh(in_rings(np.array(positions).reshape(tuple(spec.sizes.values())), axes), axes)
