"""Roofline: the least time of a step on a chip, from its specifications (Williams et al. 2009, "Roofline").

It is not a strict bound. Collectives are added up although some could use different links at the same time, and memory
traffic is added up although caches may serve a part of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from jax.sharding import Mesh

from benchmarks.devices.chips import Chip
from strategies.backends.torus import positions

Sent = tuple[str, tuple[str, ...], float]
"""Communication of a device per step: kind of collective, mesh axes, bytes sent."""


TORUS_DIMS = "torus x", "torus y", "torus z"
"""Names of the links along each dim of a torus."""


@dataclass(frozen=True)
class Roofline:
    """Seconds that one device needs for each resource on its own.

    Attributes:
        compute_seconds: matmul FLOPs at the chip's peak.
        memory_seconds: memory traffic at the chip's memory bandwidth.
        network_seconds: all collectives, one after another.
    """

    compute_seconds: float
    memory_seconds: float
    network_seconds: float

    @property
    def step_seconds(self) -> float:
        """Time of a step with perfect overlap of all three."""
        return max(self.compute_seconds, self.memory_seconds, self.network_seconds)

    @property
    def bound(self) -> str:
        """The limiting resource: "compute", "memory" or "network"."""
        parts = {"compute": self.compute_seconds, "memory": self.memory_seconds, "network": self.network_seconds}
        return max(parts, key=lambda name: parts[name])


def roofline(chip: Chip, mesh: Mesh, flops: float, memory_bytes: float, sent: Iterable[Sent]) -> Roofline:
    """Roofline of a step.

    Args:
        chip: specifications of the devices.
        mesh: mesh of devices with coordinates and process indices.
        flops: FLOPs of one device per step.
        memory_bytes: bytes that one device reads and writes per step.
        sent: what one device sends per step.
    """
    return Roofline(
        flops / chip.flops_per_second,
        memory_bytes / chip.memory_bytes_per_second,
        sum(sent_bytes / collective_bandwidth(chip, mesh, kind, axes) for kind, axes, sent_bytes in sent),
    )


def collective_bandwidth(chip: Chip, mesh: Mesh, kind: str, axes: tuple[str, ...]) -> float:
    """Bytes per second that a device can send in a kind of collective along some axes of a mesh."""
    group = group_along(mesh, axes)
    if not chip.torus_dims:
        return switch_bandwidth(chip, kind, len(group), len({device.process_index for device in group}))
    return torus_bandwidth(chip, kind, torus_dims(chip, mesh, group))


class Along(NamedTuple):
    """The positions of a group of chips along a dim of their torus.

    Attributes:
        extent: how many positions.
        ring: whether they form a ring; otherwise they form a line.
        gap: links from one position to the next, which as many groups share.
    """

    extent: int
    ring: bool
    gap: int = 1


def torus_dims(chip: Chip, mesh: Mesh, group: Iterable[Any]) -> tuple[Along, ...]:
    """The dims of the torus in which a group has several positions.

    A group whose positions are spread evenly over a whole ring forms a ring; otherwise it forms a line.
    """
    whole, part = positions(mesh.devices.flat), positions(group)
    rings = zip(chip.rings([len(each) for each in whole]), part, whole, strict=True)
    return tuple(_along(places, ring, full) for ring, places, full in rings if len(places) > 1)


def _along(places: Sequence[int], ring: bool, full: Sequence[int]) -> Along:
    """Positions in a dim, which is a ring or a line, with coordinates `full`; all in order."""
    gap = min(full.index(after) - full.index(before) for before, after in pairwise(places))
    return Along(len(places), ring and gap * len(places) == len(full), gap)


def links(chip: Chip, mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    """Names of the kinds of links that a collective along some axes of a mesh uses.

    GPUs have links to the switch of their host, and to other hosts. Chips of a torus have links along each of its dims.
    """
    group = group_along(mesh, axes)
    if chip.torus_dims:
        dims = zip(TORUS_DIMS, extents(group), strict=False)
        return tuple(name for name, extent in dims if extent > 1) or ("between cores",)
    hosts = len({device.process_index for device in group})
    return ("inside a host",) * (len(group) > hosts) + ("between hosts",) * (hosts > 1)


def group_along(mesh: Mesh, axes: Sequence[str]) -> list[Any]:
    """The devices of one group along some axes of a mesh."""
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    return list(mesh.devices[index].flat)


def extents(group: Iterable[Any]) -> list[int]:
    """Number of distinct coordinates of a group of devices in each dim of their torus."""
    return [len(places) for places in positions(group)]


def switch_bandwidth(chip: Chip, kind: str, devices: int, hosts: int) -> float:
    """Bytes per second that a GPU can send.

    GPUs of a host share a switch; to other hosts, each has its share of the network.

    Data that all devices need enters each host only once. Of the n-1 parts that a device forwards in a ring over n
    devices, the h-1 that cross between h hosts use the network (NCCL's rings: one through each of a host's network
    cards). In an all-to-all, the parts for all devices on other hosts cross.

    Args:
        chip: specifications of the GPU.
        kind: kind of collective.
        devices: number of devices in the group.
        hosts: number of hosts that they are on.
    """
    if hosts == 1:
        return chip.link_bytes_per_second
    crossing = {"permute": 1.0, "all_to_all": (devices - devices / hosts) / (devices - 1)}
    return min(
        chip.link_bytes_per_second,
        chip.network_bytes_per_second / crossing.get(kind, (hosts - 1) / (devices - 1)),
    )


def torus_bandwidth(chip: Chip, kind: str, dims: Sequence[Along]) -> float:
    """Bytes per second that a chip of a torus can send, with one link to each neighbour.

    A ring uses both of a chip's links along a dim (Jouppi et al. 2023, "TPU v4", section 2). A line is as slow as its
    ends, which have one link (Austin et al. 2025, "How to Scale Your Model", part 3). A permute uses one link. In an
    all-to-all, data travels a quarter of a ring's extent on average and occupies that many links; a line takes twice as
    long, because its middle is one link instead of two. The cores of one chip share its memory.

    Where a group has gaps, other groups lie in them and send at the same time: each has its share of the links between.

    Args:
        chip: specifications of the chip.
        kind: kind of collective.
        dims: dims of the torus in which the group has several positions.
    """
    if not dims:
        return chip.memory_bytes_per_second
    if kind == "permute":
        return chip.link_bytes_per_second / max(each.gap for each in dims)
    links = sum((2 if each.ring else 1) / each.gap for each in dims)
    hops = max(1.0, sum(each.extent for each in dims) / 4) if kind == "all_to_all" else 1.0
    return links * chip.link_bytes_per_second / hops
