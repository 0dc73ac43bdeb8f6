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


def touched(kind: str, devices: int) -> float:
    """Bytes that a virtual device reads or writes in a collective, for each that it sends: it copies its own part, too.

    >>> touched("all_gather", 2), touched("permute", 2)
    (2.0, 1.0)
    """
    return 1.0 if kind == "permute" or devices == 1 else devices / (devices - 1)


@dataclass(frozen=True)
class Network:
    """The links of a machine under a mesh on a topology."""

    machine: Machine
    topology: Topology
    mesh: MeshSpec

    @property
    def sharing(self) -> int:
        """How many devices share the cores of a host."""
        return self.machine.sharing(self.topology, self.mesh.size)

    def seconds(self, kind: str, axes: Axes, sent_bytes: Bytes | float, calls: float = 1, again: float = 0) -> float:
        """Seconds of collectives of one kind along some axes.

        Args:
            kind: a key of `strategies.core.traffic.SENT`.
            axes: mesh axes along which the devices of a group differ.
            sent_bytes: that a device sends in all of them.
            calls: how many collectives that are.
            again: how many of them come right after another one, or beside work.
        """
        return self.seconds_of(kind, self.group(axes), sent_bytes, calls, again)

    def seconds_of(
        self, kind: str, where: Group, sent_bytes: Bytes | float, calls: float = 1, again: float = 0
    ) -> float:
        """Seconds of collectives of a group. Other arguments are those of `seconds`."""
        chip = self.machine.reached
        if self.machine.stack.shares_cards and kind not in ("permute", "all_to_all"):
            chip = replace(chip, network_bytes_per_second=chip.network_bytes_per_second / where.alike)
        latency = calls * self.latency_seconds(kind, where) + self.idle_seconds(where, calls, again)
        if self.machine.stack.shared and where.hosts == 1:
            sent_bytes *= touched(kind, where.devices)
        return latency + sent_bytes / bandwidth(chip, kind, where)

    def idle_seconds(self, where: Group, calls: float, again: float) -> float:
        """A device's share of the waits of all virtual devices of a host, `again` of them short.

        While a smaller group waits, others work. With no more devices than cores no thread is taken off its core.
        """
        stack = self.machine.stack
        if not (stack.shared and where.devices // where.hosts >= self.sharing):
            return 0.0
        if self.sharing <= stack.cores:
            again = calls
        return ((calls - again) * stack.wait_seconds + again * stack.again_seconds) / self.sharing

    def skew_seconds(self, axes: Axes, work_seconds: float, share: float) -> float:
        """A device's share of the time for which the cores idle, because devices do not end their work together.

        At worst the last device works alone, on one core, for all of its work. With c cores that takes c times as long
        as on all of them, so that the others idle for c - 1 times its seconds. Where only a part of the devices wait
        for each other, others have work for the cores, unless they wait, too: the chance of both is taken to be the
        square of that part.

        Args:
            axes: along which devices wait for each other.
            work_seconds: of a device, before they do.
            share: of the worst: a skew of the stack.
        """
        if not (axes and share):
            return 0.0
        where = self.group(axes)
        local = where.devices // where.hosts
        return share * (local / self.sharing) ** 2 * self.alone_seconds(work_seconds) if local > 1 else 0.0

    def alone_seconds(self, work_seconds: float) -> float:
        """A device's share of the time for which other cores idle, if one device does all of its work alone."""
        stack = self.machine.stack
        return max(0, stack.cores - 1) * work_seconds / self.sharing if self.sharing > stack.cores else 0.0

    def group(self, axes: Axes) -> Group:
        """Where the devices of a group lie that differ along some axes."""
        return group(self.topology, self.mesh, axes, self.machine.stack.outermost)

    def first_and_last(self, axes: Axes) -> Group:
        """Where the first and the last device along some axes lie."""
        return Group(2, min(2, self.group(axes).hosts), (Along(2, ring=False),))

    def latency_seconds(self, kind: str, where: Group) -> float:
        """Latency of a collective: of a ring's steps inside a host, and of a tree's between hosts. A permute has one.

        Virtual devices wait for each other in a permute, too.

        NCCL takes rings inside a host, and trees between hosts where latency matters (Jeaugey 2019, "Massively Scale
        Your Deep Learning Training with NCCL 2.4").
        """
        constants = self.machine.constants
        inside = constants.link_seconds if where.devices > where.hosts else 0.0
        between = constants.network_seconds if where.hosts > 1 else 0.0
        if kind == "permute" and not self.machine.stack.shared:
            return max(inside, between)
        local = where.devices // where.hosts
        return inside * (local - 1) + between * math.log2(max(2, where.hosts))
