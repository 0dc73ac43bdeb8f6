"""Published specifications of accelerators: peak compute, memory capacity and bandwidth, and network bandwidth.

The tables are chips.csv, and gpus.csv, which XLA needs to compile for GPUs. A note says what a figure is made of, such
as links and ports.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from strategies.schema import Amount, Positive, Whole

GB, GIB = 10**9, 2**30
T = TypeVar("T")


@dataclass(frozen=True)
class Chip:
    """Specifications of one device as JAX counts devices: usually a chip, but on TPU7x one of the chip's two cores.

    Attributes:
        platform: JAX platform, "tpu" or "cuda"; "gpu" for GPUs of other vendors.
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
        matmul_share: the best rate that was measured for any bfloat16 matmul, as a fraction of the peak
            (stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS comparison table", SXM
            versions; of h100_96gb in proportion to its limit of power, of gb300 as of b300); 1 where it is not known.
        float32_share: rate of float32 matmuls at full precision, as a fraction of that of bfloat16. GPUs do not use
            their matrix units. TPUs multiply six pairs of bfloat16 parts (jax.lax.Precision.HIGHEST).
        fp8_share, fp4_share: rates of dense matmuls of narrow elements, in multiples of that of bfloat16: the best that
            were measured, by the same table, or peaks of data sheets; 0 where they are not known.
        cores: of a GPU, its streaming multiprocessors; 0 where matmuls have no waves.
    """

    platform: Literal["tpu", "cuda", "gpu", "cpu"]
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
    matmul_share: Positive = 1.0
    float32_share: Positive = 1.0
    fp8_share: Amount = 0.0
    fp4_share: Amount = 0.0
    cores: Whole = 0

    def rings(self, extents: Sequence[int]) -> tuple[bool, ...]:
        """Which dims of a slice of this shape wrap around.

        >>> CHIPS["v5e"].rings((8, 16)), CHIPS["v5p"].rings((4, 4, 8)), CHIPS["v5p"].rings((2, 4, 4))
        ((False, True), (True, True, True), (False, False, False))
        """
        rings = tuple(extent % self.ring_multiple == 0 for extent in extents)
        return rings if self.torus_dims < 3 or all(rings) else (False,) * len(rings)


def _read(name: str, type_: type[T]) -> dict[str, T]:
    """The rows of a table by their kinds, each as a value of this type."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as lines:
        return {row["kind"]: msgspec.convert(row, type_, strict=False) for row in csv.DictReader(lines)}


# Rings follow Austin et al. 2025, "How to Scale Your Model", part 2: v5e and v6e wrap around only along 16 chips, the
# edge of a pod; v4 and v5p in whole cubes (Jouppi et al. 2023, "TPU v4", section 2). TPU7x is assumed to be like v5p.
# The memory of GPUs is taken from XLA's descriptions of them (openxla/xla,
# xla/backends/gpu/target_config/specs/*.txtpb). It is 6 to 7% more than the datasheet's gigabytes of 10^9 bytes.
CHIPS: Mapping[str, Chip] = MappingProxyType(_read("chips.csv", Chip))
"""By our names of kinds."""
SWITCHED: Mapping[str, int] = {"gb200": 72, "gb300": 72}
"""Kinds whose hosts share a switch -> the most GPUs on one switch."""


class Gpu(TypedDict):
    """Properties of a GPU, as in XLA's own descriptions (xla/backends/gpu/target_config/specs).

    Those of an architecture are the same for all of its GPUs (CUDA C++ Programming Guide, "Compute Capabilities").
    Memories are in bytes, and the bandwidth in bytes per second.
    """

    name: str
    compute_capability: int
    compute_capability_minor: int
    feature_extension: str
    fpus_per_core: int
    shared_memory_per_core: int
    shared_memory_per_block_optin: int
    memory_bandwidth: int
    core_count: int
    l2_cache_size: int
    clock_rate_ghz: float


GPUS = _read("gpus.csv", Gpu)
"""By our names of kinds."""

GPU_TARGET = """
gpu_device_info {{
  name: "{name}"
  cuda_compute_capability {{
    major: {compute_capability} minor: {compute_capability_minor} feature_extension: {feature_extension}
  }}
  core_count: {core_count}
  clock_rate_ghz: {clock_rate_ghz}
  l2_cache_size: {l2_cache_size}
  device_memory_size: {memory_bytes}
  memory_bandwidth: {memory_bandwidth}
  fpus_per_core: {fpus_per_core}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_core: {shared_memory_per_core}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {shared_memory_per_block_optin}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""
"""A GpuTargetConfigProto (XLA, stream_executor/device_description.proto). The values that are not filled in are the
same for all of `GPUS`."""
GPU_KINDS: Mapping[str, str] = {gpu["name"]: kind for kind, gpu in GPUS.items()}
"""JAX's names of GPUs -> ours."""


def generation(kind: str) -> str:
    """The architecture of a kind of device: of NVIDIA's GPUs by their compute capability; others are their own.

    >>> generation("h200") == generation("h100"), generation("gb200") == generation("b300"), generation("v100")
    (True, True, 'compute capability 7')
    """
    return f"compute capability {GPUS[kind]['compute_capability']}" if kind in GPUS else kind
