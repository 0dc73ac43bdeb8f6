"""Seconds of collectives: the latency of their steps, and bytes over the bandwidth of their links."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.devices.chips import Chip
from benchmarks.devices.placement import topology_mesh
from benchmarks.devices.topology import Topology
from benchmarks.seconds.machine import Machine
from benchmarks.simulate.roofline import Along, group_along, switch_bandwidth, torus_bandwidth, torus_dims
from strategies import MeshSpec
from strategies.core.placement import Axes
from strategies.core.traffic import Bytes


@dataclass(frozen=True)
class Group:
    """Where the devices of a collective lie.

    Attributes:
        devices: in the group.
        hosts: that they are on; 1 on a torus, whose links do not end at a host.
        dims: of a torus: the positions of the group along each dim. Other devices form a line, as virtual devices do
            that stand for chips of a torus.
        alike: groups on the same hosts that have several but not all of their devices, this one included.
    """

    devices: int
    hosts: int = 1
    dims: tuple[Along, ...] = ()
    alike: int = 1


@cache
def group(topology: Topology, spec: MeshSpec, axes: Axes, outermost: Axes = ()) -> Group:
    """The group of a mesh along some axes, on all devices of a topology. GPUs are numbered host by host.

    Args:
        topology: the devices.
        spec: the mesh.
        axes: mesh axes along which the devices of the group differ.
        outermost: of GPUs: mesh axes that lie outside of those that the mesh has first.
    """
    if topology.chip is None or not topology.chip.torus_dims:
        order = sorted(spec.sizes, key=lambda axis: axis not in outermost)
        hosts = np.arange(spec.size).reshape([spec.sizes[axis] for axis in order]) // topology.shape[-1]
        index = tuple(slice(None) if axis in axes else 0 for axis in order)
        along = hosts[index]
        count = len(np.unique(along))
        inside = along.size // count
        alike = topology.shape[-1] // inside if count > 1 and inside > 1 else 1
        return Group(along.size, count, (Along(along.size, ring=False),), alike)
    mesh, chip = topology_mesh(topology, spec), topology.chip
    members = group_along(mesh, axes)
    return Group(len(members), 1, torus_dims(chip, mesh, members))


def bandwidth(chip: Chip, kind: str, where: Group) -> float:
    """Bytes per second that a device sends in a collective of a group."""
    if chip.torus_dims:
        return torus_bandwidth(chip, kind, where.dims)
    return switch_bandwidth(chip, kind, where.devices, where.hosts)


@dataclass(frozen=True)
class Network:
    """The links of a machine under a mesh on a topology."""

    machine: Machine
    topology: Topology
    mesh: MeshSpec

    def seconds(self, kind: str, axes: Axes, sent_bytes: Bytes | float, calls: float = 1) -> float:
        """Seconds of collectives of one kind along some axes.

        Args:
            kind: a key of `strategies.core.traffic.SENT`.
            axes: mesh axes along which the devices of a group differ.
            sent_bytes: that a device sends in all of them.
            calls: how many collectives that are.
        """
        return self.seconds_of(kind, self.group(axes), sent_bytes, calls)

    def seconds_of(self, kind: str, where: Group, sent_bytes: Bytes | float, calls: float = 1) -> float:
        """Seconds of collectives of a group. Other arguments are those of `seconds`."""
        chip = self.machine.reached
        if self.machine.stack.shares_cards and kind not in ("permute", "all_to_all"):
            chip = replace(chip, network_bytes_per_second=chip.network_bytes_per_second / where.alike)
        return calls * self.latency_seconds(kind, where) + sent_bytes / bandwidth(chip, kind, where)

    def group(self, axes: Axes) -> Group:
        """Where the devices of a group lie that differ along some axes."""
        return group(self.topology, self.mesh, axes, self.machine.stack.outermost)

    def first_and_last(self, axes: Axes) -> Group:
        """Where the first and the last device along some axes lie."""
        return Group(2, min(2, self.group(axes).hosts), (Along(2, ring=False),))

    def latency_seconds(self, kind: str, where: Group) -> float:
        """Latency of a collective: of a ring's steps inside a host, and of a tree's between hosts. A permute has one.

        NCCL takes rings inside a host, and trees between hosts where latency matters (Jeaugey 2019, "Massively Scale
        Your Deep Learning Training with NCCL 2.4").
        """
        constants = self.machine.constants
        inside = constants.link_seconds if where.devices > where.hosts else 0.0
        between = constants.network_seconds if where.hosts > 1 else 0.0
        if kind == "permute":
            return max(inside, between)
        local = where.devices // where.hosts
        return inside * (local - 1) + between * math.log2(max(2, where.hosts))
