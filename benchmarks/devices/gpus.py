"""Descriptions of GPUs that XLA needs to compile for them, beside those of chips.py."""

from collections.abc import Mapping
from typing import TypedDict

from benchmarks.devices.chips import read_table


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


GPUS = read_table("gpus.csv", Gpu)
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
