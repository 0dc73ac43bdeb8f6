"""Where devices that are not there stand on a mesh: as JAX places them, or by arithmetic where it has no compiler."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from jax.sharding import Mesh

from benchmarks.devices.topology import Topology
from strategies import MeshSpec

CORES = {"tpu7x": 2}
"""Devices that a chip is, where it is more than one."""


@dataclass(frozen=True, eq=False)
class Place:
    """What roofline.py asks of a device."""

    coords: tuple[int, ...]
    process_index: int


def device_count(topology: Topology) -> int:
    """Devices of a topology.

    >>> device_count(Topology.parse("v5p:4x4x4")), device_count(Topology.parse("tpu7x:4x4x4"))
    (64, 128)
    """
    return math.prod(topology.shape) * CORES.get(topology.kind, 1)


@cache
def placed(topology: Topology, spec: MeshSpec) -> Mesh:
    """The mesh of a topology's devices, as the steps have it; without a compiler, of places in order of its shape.

    Virtual devices stand in a row, on one host. GPUs are in order of their hosts.
    """
    if topology.chip and topology.compiler_version:
        return spec.over(tuple(spec.sizes), topology.devices())
    hosts = topology.platform == "cuda"
    places = [
        Place(coords, coords[0] if hosts else 0)
        for coords in np.ndindex(topology.shape)
        for _ in range(CORES.get(topology.kind, 1))
    ]
    return Mesh(np.array(places).reshape(tuple(spec.sizes.values())), tuple(spec.sizes))
