"""The time that a step takes on a chip at best, from its published figures (Williams et al. 2009, "Roofline").

Not quite a bound: collectives are added up, though some could go over other links at once, and so are all accesses to
memory, of which caches keep some.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from benchmarks.devices.chips import Chip

Sent = tuple[str, tuple[str, ...], float]
"""What a device sends in a step: by which kind of collective, over which axes, how many bytes."""


@dataclass(frozen=True)
class Roofline:
    """Seconds of one device, were it limited by nothing else.

    Attributes:
        compute_seconds: for its FLOPs.
        memory_seconds: to read and write its memory.
        network_seconds: to send all that it sends, one collective after another.
    """

    compute_seconds: float
    memory_seconds: float
    network_seconds: float

    @property
    def step_seconds(self) -> float:
        """If all three overlap entirely."""
        return max(self.compute_seconds, self.memory_seconds, self.network_seconds)

    @property
    def bound(self) -> str:
        """Which of them it is that takes so long."""
        parts = {"compute": self.compute_seconds, "memory": self.memory_seconds, "network": self.network_seconds}
        return max(parts, key=lambda name: parts[name])


def roofline(chip: Chip, mesh: Mesh, flops: float, memory_bytes: float, sent: Iterable[Sent]) -> Roofline:
    """Of a step in which one device computes, reads and writes, and sends."""
    return Roofline(
        flops / chip.flops_per_second,
        memory_bytes / chip.memory_bytes_per_second,
        sum(sent_bytes / bytes_per_second(chip, mesh, kind, axes) for kind, axes, sent_bytes in sent),
    )


def bytes_per_second(chip: Chip, mesh: Mesh, kind: str, axes: tuple[str, ...]) -> float:
    """That a device can send by a kind of collective to those of its group, along some axes of a mesh."""
    group = group_along(mesh, axes)
    if not chip.dims:
        return switched(chip, kind, len(group), len({device.process_index for device in group}))
    whole, part = extents(mesh.devices.flat), extents(group)
    # A group that does not go all the way around a dim is a line in it.
    rings = [ring and extent == full for ring, extent, full in zip(chip.rings(whole), part, whole, strict=True)]
    return wired(chip, kind, [(extent, ring) for extent, ring in zip(part, rings, strict=True) if extent > 1])


def group_along(mesh: Mesh, axes: Sequence[str]) -> list[Any]:
    """The devices of one group along some axes of a mesh."""
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    return list(mesh.devices[index].flat)


def extents(group: Iterable[Any]) -> list[int]:
    """In how many places of each dim of their torus some devices are."""
    return [len(set(places)) for places in zip(*(device.coords for device in group), strict=True)]


def switched(chip: Chip, kind: str, devices: int, hosts: int) -> float:
    """GPUs share a switch on a host; between hosts each has its share of the network.

    What all are to get enters each host but once: of the n-1 parts that a device passes on to gather or to reduce those
    of n devices, the h-1 that cross between h hosts (NCCL's rings: one through each of a host's network cards). What
    one sends to each of the others crosses for all of these that are elsewhere.
    """
    if hosts == 1:
        return chip.link_bytes_per_second
    elsewhere = {"permute": 1.0, "all_to_all": (devices - devices / hosts) / (devices - 1)}
    return min(
        chip.link_bytes_per_second,
        chip.network_bytes_per_second / elsewhere.get(kind, (hosts - 1) / (devices - 1)),
    )


def wired(chip: Chip, kind: str, wide: Sequence[tuple[int, bool]]) -> float:
    """Bytes a second that chips send by their links, one each way to every neighbour.

    Args:
        chip: their figures.
        kind: of collective.
        wide: for each dim of the torus in which a group has several places: how many, and whether they are a ring.

    A ring uses both of a chip's links along it (Jouppi et al. 2023, "TPU v4", section 2). A line is as slow as its
    ends, which have one (Austin et al. 2025, "How to Scale Your Model", part 3). A permutation uses one link. What a
    chip sends to each of the others passes a quarter of a ring's extent, on the mean, and as many links; a line, whose
    middle is one link and not two, takes twice as long. The cores of one chip share its memory.
    """
    if not wide:
        return chip.memory_bytes_per_second
    if kind == "permute":
        return chip.link_bytes_per_second
    links = sum(2 if ring else 1 for _, ring in wide)
    passed = max(1.0, sum(extent for extent, _ in wide) / 4) if kind == "all_to_all" else 1.0
    return links * chip.link_bytes_per_second / passed
