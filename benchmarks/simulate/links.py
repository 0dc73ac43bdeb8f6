"""Links: which of them a group of devices uses, how fast it sends, and the seconds of its collectives.

GPUs of a host share a switch, and each has its share of the network between hosts. Chips of a torus have a link to each
neighbour along each of its dims.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from benchmarks.devices.chips import Chip
from benchmarks.devices.placement import extents, group_along, topology_mesh
from benchmarks.devices.topology import Topology
from benchmarks.simulate.machine import Constants, Machine
from strategies import MeshSpec
from strategies.backends.device_mesh import positions
from strategies.core.placement import Axes
from strategies.core.traffic import Bytes

TORUS_DIMS = "torus x", "torus y", "torus z"
"""Names of the links along each dim of a torus."""


class TorusSpan(NamedTuple):
    """The positions of a group of chips along a dim of their torus, a ring or a line. From one position to the next
    there are `gap` links, which as many groups share.
    """

    extent: int
    ring: bool
    gap: int = 1


@dataclass(frozen=True)
class Group:
    """The devices of a collective, their hosts (1 on a torus, whose links do not end at a host), their positions along
    each dim of a torus, and the names of the kinds of links that they use.
    """

    devices: int
    hosts: int = 1
    dims: tuple[TorusSpan, ...] = ()
    links: tuple[str, ...] = ()


@cache
def group(topology: Topology, spec: MeshSpec, axes: Axes) -> Group:
    """The group of a mesh along some axes, on all devices of a topology. GPUs are numbered host by host."""
    if topology.chip is None or not topology.chip.torus_dims:
        hosts = np.arange(spec.size).reshape([*spec.sizes.values()]) // topology.shape[-1]
        along = hosts[tuple(slice(None) if axis in axes else 0 for axis in spec.sizes)]
        return _switched(along.size, len(np.unique(along)))
    return mesh_group(topology.chip, topology_mesh(topology, spec), axes)


def mesh_group(chip: Chip, mesh: Mesh, axes: Sequence[str]) -> Group:
    """The group along some axes of a mesh of devices with coordinates or process indices."""
    members = group_along(mesh, axes)
    if not chip.torus_dims:
        return _switched(len(members), len({device.process_index for device in members}))
    whole, part = positions(mesh.devices.flat), positions(members)
    rings = zip(chip.rings([len(places) for places in whole]), part, whole, strict=True)
    dims = tuple(_along(places, ring, full) for ring, places, full in rings if len(places) > 1)
    names = [name for name, extent in zip(TORUS_DIMS, extents(members), strict=False) if extent > 1]
    return Group(len(members), 1, dims, tuple(names) or ("between cores",))


def _switched(devices: int, hosts: int) -> Group:
    """A group of GPUs on hosts."""
    links = ("inside a host",) * (devices > hosts) + ("between hosts",) * (hosts > 1)
    return Group(devices, hosts, (), links)


def _along(places: Sequence[int], ring: bool, full: Sequence[int]) -> TorusSpan:
    """Positions in a dim with coordinates `full`, all in order: a ring if they are spread evenly over a whole ring."""
    gap = min(full.index(after) - full.index(before) for before, after in pairwise(places))
    return TorusSpan(len(places), ring and gap * len(places) == len(full), gap)


def bandwidth(chip: Chip, kind: str, where: Group) -> float:
    """Bytes per second that a device sends in a collective of a group; kinds are those of `strategies.core.traffic`."""
    return torus_bandwidth(chip, kind, where.dims) if chip.torus_dims else switch_bandwidth(chip, kind, where)


def switch_bandwidth(chip: Chip, kind: str, where: Group) -> float:
    """Bytes per second that a GPU can send.

    GPUs of a host share a switch; to other hosts, each has its share of the network. Where there is no switch, as in
    NVIDIA's HGX boards of four GPUs, a group uses the links between its own devices.

    Data that all devices need enters each host only once. Of the n-1 parts that a device forwards in a ring over n
    devices, the h-1 that cross between h hosts use the network (NCCL's rings: one through each of a host's network
    cards). In an all-to-all, the parts for all devices on other hosts cross.
    """
    inside, devices, hosts = chip.link_bytes_per_second, where.devices, where.hosts
    if chip.peers and devices > hosts:
        inside *= min(1.0, (devices / hosts - 1) / chip.peers)
    if hosts == 1:
        return inside
    crossing = {"permute": 1.0, "all_to_all": (devices - devices / hosts) / (devices - 1)}
    return min(inside, chip.network_bytes_per_second / crossing.get(kind, (hosts - 1) / (devices - 1)))


def torus_bandwidth(chip: Chip, kind: str, dims: Sequence[TorusSpan]) -> float:
    """Bytes per second that a chip of a torus can send, with one link to each neighbour.

    A ring uses both of a chip's links along a dim (Jouppi et al. 2023, "TPU v4", section 2). A line is as slow as its
    ends, which have one link (Austin et al. 2025, "How to Scale Your Model", part 3). A permute uses one link. In an
    all-to-all, data travels a quarter of a ring's extent on average and occupies that many links; a line takes twice as
    long, because its middle is one link instead of two. The cores of one chip share its memory.

    Where a group has gaps, other groups lie in them and send at the same time: each has its share of the links between.
    """
    if not dims:
        return chip.memory_bytes_per_second
    if kind == "permute":
        return chip.link_bytes_per_second / max(dim.gap for dim in dims)
    links = sum((2 if dim.ring else 1) / dim.gap for dim in dims)
    hops = max(1.0, sum(dim.extent for dim in dims) / 4) if kind == "all_to_all" else 1.0
    return links * chip.link_bytes_per_second / hops


def collective_seconds(machine: Machine, kind: str, where: Group, sent_bytes: Bytes | float, calls: float = 1) -> float:
    """Seconds of collectives of one kind, in all of which a device sends some bytes."""
    chip = machine.effective_chip
    return calls * latency_seconds(machine.constants, kind, where) + float(sent_bytes) / bandwidth(chip, kind, where)


def latency_seconds(constants: Constants, kind: str, where: Group) -> float:
    """Latency of a collective: of a ring's steps inside a host, and of a tree's between hosts. A permute has one.

    NCCL takes rings inside a host, and trees between hosts where latency matters (Jeaugey 2019, "Massively Scale
    Your Deep Learning Training with NCCL 2.4").
    """
    inside = constants.link_seconds if where.devices > where.hosts else 0.0
    between = constants.network_seconds if where.hosts > 1 else 0.0
    if kind == "permute":
        return max(inside, between)
    return inside * (where.devices // where.hosts - 1) + between * math.log2(max(2, where.hosts))
