"""The machine of a run: versions, flags, devices and matmul throughput."""

import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
from jax.extend.backend import get_backend

from benchmarks.devices.attached import skip_absent_tpus
from benchmarks.devices.topology import Topology
from benchmarks.run.journal import fingerprint
from benchmarks.run.measure import Training, timed
from strategies.backends.backend import are_virtual

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
COMPILER = ("jax", "jaxlib", "flax", "optax")
"""Packages whose version can change a compiled program."""
SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
    "jax_threefry_partitionable",
    "jax_use_shardy_partitioner",
)
"""JAX settings that can change a compiled program ("Configuration options", JAX documentation)."""
MATMUL_ROUNDS = 10
VIRTUAL_DEVICES = 8


def use_virtual_devices() -> None:
    """Request virtual CPU devices. Must be called before any backend starts, which fixes their number.

    Accelerators are unaffected, and a number that the user has set takes precedence. TPUs that are not there are not
    looked for.
    """
    skip_absent_tpus()
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not by_flag and "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", VIRTUAL_DEVICES)


def disable_compilation_cache() -> None:
    """Disable JAX's persistent compilation cache on virtual devices, where cached programs can hang
    (`strategies/backends/pace.py`).

    Must be called before anything is compiled.
    """
    if are_virtual(jax.devices()):
        jax.config.update("jax_enable_compilation_cache", False)


def machine_facts(
    matmul_flops_per_second: Mapping[str, float | None], topology: Topology | None = None
) -> dict[str, Any]:
    """What runs can be compared by, for the report: versions, flags, devices and measured throughput.

    `counters_fingerprint` identifies what compiled programs depend on, so runs with the same one can be compared
    exactly.
    """
    facts = compiler_facts(topology)
    return facts | {
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "virtual_devices": facts["platform"] == "cpu",
        "glibc_tunables": glibc_tunables(),
        "counters_fingerprint": fingerprint(facts),
        "matmul_flops_per_second": dict(matmul_flops_per_second),
    }


def glibc_tunables() -> str:
    """Memory allocation settings of the C library. They affect the speed of a step but not its result."""
    return os.environ.get("GLIBC_TUNABLES", "")


def compiler_facts(topology: Topology | None = None) -> dict[str, Any]:
    """Everything besides its input that a program compiled here depends on, for these devices or for a topology."""
    devices = topology.devices() if topology else jax.devices()
    facts = {
        "compiler_versions": {package: version(package) for package in COMPILER},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "libtpu_init_args": os.environ.get("LIBTPU_INIT_ARGS", ""),
        "jax_settings": " ".join(f"{name}={getattr(jax.config, name, None)}" for name in SETTINGS),
        "platform": devices[0].platform,
        "platform_version": get_backend().platform_version,  # version of CUDA, libtpu and the like
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "architecture": platform.machine(),
        # Omitted for a single process, so that facts equal those of reports from before multi-process runs.
        **({"process_count": jax.process_count()} if jax.process_count() > 1 else {}),
    }
    return facts | ({"topology": str(topology), "platform_version": topology.compiler_version} if topology else {})


def matmul_flops_per_second(dtype: str) -> float:
    """Measured FLOPs per second of a chain of square matmuls on one device, from the fastest block.

    Virtual devices share the cores of one machine, so there this is the throughput of all cores.
    """
    size = 1024 if jax.devices()[0].platform == "cpu" else 8192
    x_DD = jax.random.normal(jax.random.key(0), (size, size), dtype)
    w_DD = x_DD / math.sqrt(size)  # the product has the variance of x
    with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):  # the precision of the steps
        program = jax.jit(lambda x, w: (x @ w, {}), donate_argnums=0).lower(x_DD, w_DD).compile()
    training = Training(program, x_DD, [w_DD], first_process_only=True)
    return 2 * size**3 / min(timed({"matmul": training}, MATMUL_ROUNDS)["matmul"].seconds)
