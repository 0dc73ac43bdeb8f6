"""Published specifications of accelerators: peak compute, memory capacity and bandwidth, and network bandwidth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta

from strategies.schema import Amount, Positive, Whole

GB, GIB, TFLOP = 10**9, 2**30, 10**12


@dataclass(frozen=True)
class Chip:
    """Specifications of one device as JAX counts devices: usually a chip, but on TPU7x one of the chip's two cores.

    Attributes:
        platform: JAX platform, "tpu" or "cuda".
        flops_per_second: peak of dense bfloat16 matmuls; of GPUs also in float16.
        memory_bytes: HBM capacity.
        memory_bytes_per_second: HBM bandwidth.
        link_bytes_per_second: bandwidth of one link in one direction, to a neighbour in a torus or to the host's
            switch.
        torus_dims: number of dims of the torus that chips form; 0 where the devices of a host share a switch.
        ring_multiple: a dim of a slice wraps around (is a ring) if its extent is a multiple of this; otherwise it is a
            line. In three dims all extents must be such multiples, because only cubes of 4x4x4 are joined by optical
            switches. 0 where there is no torus.
        slice_chips: number of chips in the largest slice; 0 where there is no limit.
        network_bytes_per_second: bandwidth to other hosts outside of the torus: the device's share of its host's
            network. 0 where it is not known.
        source: where the figures were published.
        peers: of GPUs without a switch, how many others a host has, each at the end of the same share of the links; 0
            where there is a switch.
    """

    platform: Literal["tpu", "cuda", "cpu"]
    flops_per_second: Positive
    memory_bytes: Whole
    memory_bytes_per_second: Positive
    link_bytes_per_second: Positive
    torus_dims: Annotated[int, Meta(ge=0, le=3)]
    ring_multiple: Whole
    slice_chips: Whole
    network_bytes_per_second: Amount
    source: str
    peers: Whole = 0

    def rings(self, extents: Sequence[int]) -> tuple[bool, ...]:
        """Which dims of a slice of this shape wrap around.

        >>> CHIPS["v5e"].rings((8, 16)), CHIPS["v5p"].rings((4, 4, 8)), CHIPS["v5p"].rings((2, 4, 4))
        ((False, True), (True, True, True), (False, False, False))
        """
        rings = tuple(extent % self.ring_multiple == 0 for extent in extents)
        return rings if self.torus_dims < 3 or all(rings) else (False,) * len(rings)


# Rings follow Austin et al. 2025, "How to Scale Your Model", part 2: v5e and v6e wrap around only along 16 chips, the
# edge of a pod; v4 and v5p in whole cubes (Jouppi et al. 2023, "TPU v4", section 2). TPU7x is assumed to be like v5p.
# The memory of GPUs is taken from XLA's descriptions of them (openxla/xla,
# xla/backends/gpu/target_config/specs/*.txtpb). It is 6 to 7% more than the datasheet's gigabytes of 10^9 bytes.
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        # 6 links with 50 GB/s each way (Jouppi et al. 2023, "TPU v4", table 4). The network is not published: as v5p.
        "v4": Chip(
            platform="tpu",
            flops_per_second=275 * TFLOP,
            memory_bytes=32 * GIB,
            memory_bytes_per_second=1200 * GB,
            link_bytes_per_second=50 * GB,
            torus_dims=3,
            ring_multiple=4,
            slice_chips=4096,
            network_bytes_per_second=50 * GB / 8,
            source="docs.cloud.google.com/tpu/docs/v4",
        ),
        # 400 GB/s over 4 links, both ways together; 2 x 100 Gbit/s of network per host.
        "v5e": Chip(
            platform="tpu",
            flops_per_second=197 * TFLOP,
            memory_bytes=16 * GIB,
            memory_bytes_per_second=819 * GB,
            link_bytes_per_second=400 * GB / 2 / 4,
            torus_dims=2,
            ring_multiple=16,
            slice_chips=256,
            network_bytes_per_second=200 * GB / 8 / 8,
            source="docs.cloud.google.com/tpu/docs/v5e",
        ),
        # 1,200 GB/s over 6 links, both ways together; 50 Gbit/s of network per chip. A pod has 8,960 chips, and the
        # largest slice is 16x16x24.
        "v5p": Chip(
            platform="tpu",
            flops_per_second=459 * TFLOP,
            memory_bytes=95 * GIB,
            memory_bytes_per_second=2765 * GB,
            link_bytes_per_second=1200 * GB / 2 / 6,
            torus_dims=3,
            ring_multiple=4,
            slice_chips=6144,
            network_bytes_per_second=50 * GB / 8,
            source="docs.cloud.google.com/tpu/docs/v5p",
        ),
        # 800 GB/s over 4 links, both ways together; 100 Gbit/s of network per chip.
        "v6e": Chip(
            platform="tpu",
            flops_per_second=918 * TFLOP,
            memory_bytes=32 * GIB,
            memory_bytes_per_second=1638 * GB,
            link_bytes_per_second=800 * GB / 2 / 4,
            torus_dims=2,
            ring_multiple=16,
            slice_chips=256,
            network_bytes_per_second=100 * GB / 8,
            source="docs.cloud.google.com/tpu/docs/v6e",
        ),
        # A chip has two cores, and each is a device with half of its resources. 1,200 GB/s over 6 links, both ways.
        "tpu7x": Chip(
            platform="tpu",
            flops_per_second=2307 * TFLOP / 2,
            memory_bytes=192 * GIB // 2,
            memory_bytes_per_second=7380 * GB / 2,
            link_bytes_per_second=1200 * GB / 2 / 6 / 2,
            torus_dims=3,
            ring_multiple=4,
            slice_chips=9216,
            network_bytes_per_second=100 * GB / 8 / 2,
            source="docs.cloud.google.com/tpu/docs/tpu7x",
        ),
        # NVLink 2: 300 GB/s, both ways together. A DGX-1 has four ports of 100 Gbit/s for eight GPUs.
        "v100": Chip(
            platform="cuda",
            flops_per_second=125 * TFLOP,
            memory_bytes=16_935_682_048,
            memory_bytes_per_second=900 * GB,
            link_bytes_per_second=150 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8 / 8,
            source="NVIDIA V100 datasheet; DGX-1 user guide; memory: XLA's v100.txtpb",
        ),
        # NVLink 3: 600 GB/s, both ways together. AWS's p4d has 400 Gbit/s for eight GPUs.
        "a100_40gb": Chip(
            platform="cuda",
            flops_per_second=312 * TFLOP,
            memory_bytes=42_331_013_120,
            memory_bytes_per_second=1555 * GB,
            link_bytes_per_second=300 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8 / 8,
            source="NVIDIA A100 datasheet; Amazon EC2 P4 instances; memory: XLA's a100_sxm_40.txtpb",
        ),
        # A DGX has one port of 200 Gbit/s per GPU.
        "a100_80gb": Chip(
            platform="cuda",
            flops_per_second=312 * TFLOP,
            memory_bytes=85_100_068_864,
            memory_bytes_per_second=2039 * GB,
            link_bytes_per_second=300 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=200 * GB / 8,
            source="NVIDIA A100 datasheet; DGX A100 user guide; memory: XLA's a100_sxm_80.txtpb",
        ),
        # PCIe 5: 128 GB/s, both ways together. Bridges that join pairs of cards by NVLink are left out.
        "h100_pcie": Chip(
            platform="cuda",
            flops_per_second=756 * TFLOP,
            memory_bytes=84_942_979_072,
            memory_bytes_per_second=2039 * GB,
            link_bytes_per_second=64 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8 / 8,
            source="NVIDIA H100 PCIe datasheet; network: as AWS's p4d; memory: XLA's h100_pcie.txtpb",
        ),
        # NVLink 4: 900 GB/s, both ways together. A DGX has one port of 400 Gbit/s per GPU.
        "h100": Chip(
            platform="cuda",
            flops_per_second=989 * TFLOP,
            memory_bytes=84_942_979_072,
            memory_bytes_per_second=3350 * GB,
            link_bytes_per_second=450 * GB,
            torus_dims=0,
            ring_multiple=0,
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
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8,
            source="NVIDIA H200 SXM datasheet; DGX H200 user guide; memory: XLA's h200.txtpb",
        ),
        # NVLink 5: 1,800 GB/s, both ways together. XLA's description has 7,672 GB/s of memory bandwidth, which is
        # what XLA compiles for; rooflines use the published figure, as for all chips.
        "b200": Chip(
            platform="cuda",
            flops_per_second=2250 * TFLOP,
            memory_bytes=191_514_411_008,
            memory_bytes_per_second=8000 * GB,
            link_bytes_per_second=900 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8,
            source="NVIDIA HGX B200 datasheet; DGX B200 user guide; memory: XLA's b200.txtpb",
        ),
        # One port of 400 Gbit/s for a GPU of GB200, and of 800 Gbit/s for one of B300 and GB300. The GPUs of a rack of
        # GB200 or GB300 share a switch (`SWITCHED`).
        "gb200": Chip(
            platform="cuda",
            flops_per_second=2500 * TFLOP,
            memory_bytes=197_897_748_480,
            memory_bytes_per_second=8000 * GB,
            link_bytes_per_second=900 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=400 * GB / 8,
            source="NVIDIA GB200 NVL72 datasheet, a GPU's part of 72; memory: XLA's gb200.txtpb",
        ),
        "b300": Chip(
            platform="cuda",
            flops_per_second=2250 * TFLOP,
            memory_bytes=297_021_865_984,
            memory_bytes_per_second=8000 * GB,
            link_bytes_per_second=900 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=800 * GB / 8,
            source="NVIDIA HGX B300 datasheet; DGX B300 user guide; memory: XLA's b300.txtpb",
        ),
        "gb300": Chip(
            platform="cuda",
            flops_per_second=2500 * TFLOP,
            memory_bytes=297_021_079_552,
            memory_bytes_per_second=8000 * GB,
            link_bytes_per_second=900 * GB,
            torus_dims=0,
            ring_multiple=0,
            slice_chips=0,
            network_bytes_per_second=800 * GB / 8,
            source="NVIDIA GB300 NVL72 datasheet, a GPU's part of 72; memory: XLA's gb300.txtpb",
        ),
    }
)
SWITCHED: Mapping[str, int] = {"gb200": 72, "gb300": 72}
"""Kinds whose hosts share a switch -> the most GPUs on one switch."""
