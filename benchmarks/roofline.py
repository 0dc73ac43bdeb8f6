"""The least time that a step can take on a chip, from its published figures (Williams et al. 2009, "Roofline")."""

from collections.abc import Iterable
from dataclasses import dataclass

from jax.sharding import Mesh

from benchmarks.chips import Chip


@dataclass(frozen=True)
class Roofline:
    """Seconds of one device, were it limited by nothing else.

    Attributes:
        compute_seconds: for its FLOPs.
        memory_seconds: to read and write its memory.
        network_seconds: to send over each axis what it sends, one axis after another.
    """

    compute_seconds: float
    memory_seconds: float
    network_seconds: float

    @property
    def step_seconds(self) -> float:
        """If all three overlap entirely: no step is faster."""
        return max(self.compute_seconds, self.memory_seconds, self.network_seconds)

    @property
    def bound(self) -> str:
        """Which of them it is that takes so long."""
        parts = {"compute": self.compute_seconds, "memory": self.memory_seconds, "network": self.network_seconds}
        return max(parts, key=lambda name: parts[name])


def roofline(
    chip: Chip, mesh: Mesh, flops: float, memory_bytes: float, sent: Iterable[tuple[tuple[str, ...], float]]
) -> Roofline:
    """Of a step in which one device computes, reads and writes, and sends bytes over some axes of the mesh."""
    return Roofline(
        flops / chip.flops_per_second,
        memory_bytes / chip.memory_bytes_per_second,
        sum(sent_bytes / bytes_per_second(chip, mesh, axes) for axes, sent_bytes in sent),
    )


def bytes_per_second(chip: Chip, mesh: Mesh, axes: tuple[str, ...]) -> float:
    """That a device can send to those of its group along some axes of a mesh.

    In a torus it has a link each way along every dim in which its group extends, of which a ring uses both (Jouppi et
    al. 2023, "TPU v4", section 2). On one host GPUs share a switch; between hosts each has its share of the network.
    Cores of one chip share its memory.
    """
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    group = list(mesh.devices[index].flat)
    if not chip.dims:
        hosts = {device.process_index for device in group}
        return chip.link_bytes_per_second if len(hosts) == 1 else chip.network_bytes_per_second
    dims = sum(len(set(places)) > 1 for places in zip(*(device.coords for device in group), strict=True))
    return 2 * dims * chip.link_bytes_per_second if dims else chip.memory_bytes_per_second
