"""Roofline: the least time of a step on a chip, from its specifications (Williams et al. 2009, "Roofline").

It is not a strict bound. Collectives are added up although some could use different links at the same time, and memory
traffic is added up although caches may serve a part of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jax.sharding import Mesh

from benchmarks.devices.chips import Chip
from benchmarks.simulate.links import bandwidth, mesh_group

Sent = tuple[str, tuple[str, ...], float]
"""Communication of a device per step: kind of collective, mesh axes, bytes sent."""


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
    return bandwidth(chip, kind, mesh_group(chip, mesh, axes))
