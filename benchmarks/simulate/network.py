"""Seconds of collectives: the latency of their steps, and bytes over the bandwidth of their links."""

import math
from dataclasses import dataclass, replace

from benchmarks.devices.topology import Topology
from benchmarks.simulate.links import Along, Group, bandwidth, group
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.queues import Event
from strategies import MeshSpec
from strategies.core.placement import Axes
from strategies.core.traffic import Bytes


@dataclass(frozen=True)
class Network:
    """The links of a machine under a mesh on a topology."""

    machine: Machine
    topology: Topology
    mesh: MeshSpec

    def event(self, part: str, kind: str, axes: Axes, sent_bytes: Bytes | float, calls: float = 1) -> Event:
        """Collectives of one kind along some axes, as an event on their links.

        Args:
            part: of the step, if the device waits for them.
            kind: a key of `strategies.core.traffic.SENT`.
            axes: mesh axes along which the devices of a group differ.
            sent_bytes: that a device sends in all of them.
            calls: how many collectives that are.
        """
        where = self.group(axes)
        return Event(part, self.seconds(kind, where, sent_bytes, calls), where.links)

    def seconds(self, kind: str, where: Group, sent_bytes: Bytes | float, calls: float = 1) -> float:
        """Seconds of collectives of a group. Arguments are those of `event`."""
        chip = self.machine.effective_chip
        if self.machine.stack.shares_cards and where.groups_sharing_hosts > 1 and kind not in ("permute", "all_to_all"):
            chip = replace(chip, network_bytes_per_second=chip.network_bytes_per_second / where.groups_sharing_hosts)
        return calls * self.latency_seconds(kind, where) + float(sent_bytes) / bandwidth(chip, kind, where)

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
        return inside * (where.devices // where.hosts - 1) + between * math.log2(max(2, where.hosts))
