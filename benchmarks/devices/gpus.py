"""Descriptions of GPUs that XLA needs to compile for them, beside those of chips.py."""

from collections.abc import Mapping
from typing import Any

VOLTA = {
    "compute_capability": 7,
    "compute_capability_minor": 0,
    "feature_extension": "NONE",
    "fpus_per_core": 64,
    "shared_memory_per_core": 98_304,
    "shared_memory_per_block_optin": 98_304,
}
AMPERE = {
    "compute_capability": 8,
    "compute_capability_minor": 0,
    "feature_extension": "NONE",
    "fpus_per_core": 64,
    "shared_memory_per_core": 167_936,
    "shared_memory_per_block_optin": 166_912,
}
HOPPER = {
    "compute_capability": 9,
    "compute_capability_minor": 0,
    "feature_extension": "ACCELERATED_FEATURES",
    "fpus_per_core": 128,
    "shared_memory_per_core": 233_472,
    "shared_memory_per_block_optin": 232_448,
}
BLACKWELL = {**HOPPER, "compute_capability": 10}
BLACKWELL_ULTRA = {**BLACKWELL, "compute_capability_minor": 3}
"""What the GPUs of an architecture have in common (CUDA C++ Programming Guide, "Compute Capabilities")."""

GPUS: Mapping[str, Mapping[str, Any]] = {
    "v100": {
        **VOLTA,
        "name": "Tesla V100-SXM2-16GB",
        "memory_bandwidth": 898_048_000_000,
        "core_count": 80,
        "l2_cache_size": 6 * 2**20,
        "clock_rate_ghz": 1.53,
    },
    "a100_40gb": {
        **AMPERE,
        "name": "NVIDIA A100-SXM4-40GB",
        "memory_bandwidth": 1_555_200_000_000,
        "core_count": 108,
        "l2_cache_size": 40 * 2**20,
        "clock_rate_ghz": 1.41,
    },
    "a100_80gb": {
        **AMPERE,
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_bandwidth": 2_039_040_000_000,
        "core_count": 108,
        "l2_cache_size": 40 * 2**20,
        "clock_rate_ghz": 1.41,
    },
    "h100_pcie": {
        **HOPPER,
        "name": "NVIDIA H100 PCIe",
        "memory_bandwidth": 2_039_040_000_000,
        "core_count": 114,
        "l2_cache_size": 50 * 2**20,
        "clock_rate_ghz": 1.755,
    },
    "h100": {
        **HOPPER,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bandwidth": 3_352_320_000_000,
        "core_count": 132,
        "l2_cache_size": 50 * 2**20,
        "clock_rate_ghz": 1.98,
    },
    "h200": {
        **HOPPER,
        "name": "NVIDIA H200",
        "memory_bandwidth": 4_800_000_000_000,
        "core_count": 132,
        "l2_cache_size": 50 * 2**20,
        "clock_rate_ghz": 1.98,
    },
    "b200": {
        **BLACKWELL,
        "name": "NVIDIA B200",
        "memory_bandwidth": 7_672_320_000_000,
        "core_count": 148,
        "l2_cache_size": 132_644_864,
        "clock_rate_ghz": 1.965,
    },
    "gb200": {
        **BLACKWELL,
        "name": "NVIDIA GB200",
        "memory_bandwidth": 7_928_064_000_000,
        "core_count": 152,
        "l2_cache_size": 135_528_448,
        "clock_rate_ghz": 2.062,
    },
    "b300": {
        **BLACKWELL_ULTRA,
        "feature_extension": "NONE",
        "name": "NVIDIA B300",
        "memory_bandwidth": 7_936_000_000_000,
        "core_count": 158,
        "l2_cache_size": 135_528_448,
        "clock_rate_ghz": 1.965,
    },
    "gb300": {
        **BLACKWELL_ULTRA,
        "name": "NVIDIA GB300",
        "memory_bandwidth": 7_928_064_000_000,
        "core_count": 152,
        "l2_cache_size": 135_528_448,
        "clock_rate_ghz": 2.07,
    },
}
"""Further properties that XLA needs of a GPU, as in its own descriptions (xla/backends/gpu/target_config/specs)."""

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
