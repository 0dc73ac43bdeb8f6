"""Published figures of accelerators: what a device can compute, hold and send at most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

GB, GIB, TFLOP = 10**9, 2**30, 10**12


@dataclass(frozen=True)
class Chip:
    """A device, as JAX counts them: a chip, but one of the two cores that are devices of their own on TPU7x.

    Attributes:
        platform: of JAX: "tpu" or "cuda".
        flops_per_second: of bfloat16 matmuls, dense.
        memory_bytes, memory_bytes_per_second: of its HBM.
        link_bytes_per_second: that it sends over one link: to a neighbour in a torus, or into the switch of its host.
        dims: of the torus that chips are in, with a link each way along each; 0 where a host's devices share a switch.
        ring: a dim of a slice whose extent is a multiple of it is a ring, with a link from its last chip to its first;
            any other is a line. In three dims all must be such multiples, for only cubes of 4x4x4 are joined by optical
            switches. 0 where there is no torus.
        slice_chips: in the largest torus that there is; 0 where there is none.
        network_bytes_per_second: that it sends to other hosts outside of the torus: its share of the host's network.
        source: where the figures are from.
    """

    platform: str
    flops_per_second: float
    memory_bytes: int
    memory_bytes_per_second: float
    link_bytes_per_second: float
    dims: int
    ring: int
    slice_chips: int
    network_bytes_per_second: float
    source: str

    def rings(self, extents: Sequence[int]) -> tuple[bool, ...]:
        """Which dims of a slice of this shape are rings.

        >>> CHIPS["v5e"].rings((8, 16)), CHIPS["v5p"].rings((4, 4, 8)), CHIPS["v5p"].rings((2, 4, 4))
        ((False, True), (True, True, True), (False, False, False))
        """
        rings = tuple(extent % self.ring == 0 for extent in extents)
        return rings if self.dims < 3 or all(rings) else (False,) * len(rings)


# Rings are as Austin et al. 2025, "How to Scale Your Model", part 2, has them: of v5e and v6e only along 16 chips, the
# edge of a pod; of v4 and v5p in whole cubes (Jouppi et al. 2023, "TPU v4", section 2). TPU7x is taken to be as v5p.
# What GPUs hold is what XLA's own descriptions of them say (openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb):
# 6 to 7% more than as many gigabytes of 10^9 bytes as their datasheets name.
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        # Its 6 links carry 50 GB/s each way (Jouppi et al. 2023, "TPU v4", table 4); no network is published, so v5p's.
        "v4": Chip(
            platform="tpu",
            flops_per_second=275 * TFLOP,
            memory_bytes=32 * GIB,
            memory_bytes_per_second=1200 * GB,
            link_bytes_per_second=50 * GB,
            dims=3,
            ring=4,
            slice_chips=4096,
            network_bytes_per_second=50 * GB / 8,
            source="docs.cloud.google.com/tpu/docs/v4",
        ),
        # 400 GB/s of links, both ways, at 4 ports; 2 x 100 Gbit/s a host.
        "v5e": Chip(
            platform="tpu",
            flops_per_second=197 * TFLOP,
            memory_bytes=16 * GIB,
            memory_bytes_per_second=819 * GB,
            link_bytes_per_second=400 * GB / 2 / 4,
            dims=2,
            ring=16,
            slice_chips=256,
            network_bytes_per_second=200 * GB / 8 / 8,
            source="docs.cloud.google.com/tpu/docs/v5e",
        ),
        # 1,200 GB/s of links, both ways, at 6 ports; 50 Gbit/s of network a chip. A pod has 8,960 chips, a
        # slice 16x16x24 of them at most.
        "v5p": Chip(
            platform="tpu",
            flops_per_second=459 * TFLOP,
            memory_bytes=95 * GIB,
            memory_bytes_per_second=2765 * GB,
            link_bytes_per_second=1200 * GB / 2 / 6,
            dims=3,
            ring=4,
            slice_chips=6144,
            network_bytes_per_second=50 * GB / 8,
            source="docs.cloud.google.com/tpu/docs/v5p",
        ),
        # 800 GB/s of links, both ways, at 4 ports; 100 Gbit/s of network a chip.
        "v6e": Chip(
            platform="tpu",
            flops_per_second=918 * TFLOP,
            memory_bytes=32 * GIB,
            memory_bytes_per_second=1638 * GB,
            link_bytes_per_second=800 * GB / 2 / 4,
            dims=2,
            ring=16,
            slice_chips=256,
            network_bytes_per_second=100 * GB / 8,
            source="docs.cloud.google.com/tpu/docs/v6e",
        ),
        # A chip has two cores, each a device with half of it. 1,200 GB/s of links, both ways, at 6 ports.
        "tpu7x": Chip(
            platform="tpu",
            flops_per_second=2307 * TFLOP / 2,
            memory_bytes=192 * GIB // 2,
            memory_bytes_per_second=7380 * GB / 2,
            link_bytes_per_second=1200 * GB / 2 / 6 / 2,
            dims=3,
            ring=4,
            slice_chips=9216,
            network_bytes_per_second=100 * GB / 8 / 2,
            source="docs.cloud.google.com/tpu/docs/tpu7x",
        ),
        # NVLink 4: 900 GB/s, both ways. A DGX has a port of 400 Gbit/s for each GPU.
        "h100": Chip(
            platform="cuda",
            flops_per_second=989 * TFLOP,
            memory_bytes=84_942_979_072,
            memory_bytes_per_second=3350 * GB,
            link_bytes_per_second=450 * GB,
            dims=0,
            ring=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8,
            source="NVIDIA H100 SXM datasheet; DGX H100 user guide; memory: XLA's h100_sxm.txtpb",
        ),
        "h200": Chip(
            platform="cuda",
            flops_per_second=989 * TFLOP,
            memory_bytes=151_397_597_184,
            memory_bytes_per_second=4800 * GB,
            link_bytes_per_second=450 * GB,
            dims=0,
            ring=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8,
            source="NVIDIA H200 SXM datasheet; DGX H200 user guide; memory: XLA's h200.txtpb",
        ),
        # NVLink 5: 1,800 GB/s, both ways. XLA's description says 7,672 GB/s of its memory, and XLA is told so;
        # rooflines are by what is published, as with all chips.
        "b200": Chip(
            platform="cuda",
            flops_per_second=2250 * TFLOP,
            memory_bytes=191_514_411_008,
            memory_bytes_per_second=8000 * GB,
            link_bytes_per_second=900 * GB,
            dims=0,
            ring=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8,
            source="NVIDIA HGX B200 datasheet; DGX B200 user guide; memory: XLA's b200.txtpb",
        ),
    }
)
