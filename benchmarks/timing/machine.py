"""What a run ran on: versions, flags, devices, their speed on a matmul, and a fingerprint of what does not change."""

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
from jax.extend.backend import get_backend

from benchmarks.devices.topology import Topology
from benchmarks.timing.measure import Training, steps_per_block
from benchmarks.timing.turns import Turns, take_turns
from strategies.mesh import are_virtual

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
COMPILER = ("jax", "jaxlib", "flax", "optax")
"""The packages whose version may change a compiled program."""
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
"""The settings of JAX that may change a compiled program ("Configuration options", JAX documentation)."""
MATMUL_ROUNDS = 10
VIRTUAL_DEVICES = 8


def use_virtual_devices() -> None:
    """Ask for virtual CPU devices. Before any backend starts, for that fixes the count.

    It does not touch accelerators, and a count that is set wins.
    """
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not by_flag and "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", VIRTUAL_DEVICES)


def compile_anew() -> None:
    """Have JAX read no program from its persistent cache where devices are virtual, which may hang in it.

    `strategies/pace.py` says why. It is to be called before anything is compiled.
    """
    if are_virtual(jax.devices()):
        jax.config.update("jax_enable_compilation_cache", False)


def update_machine_info(
    info: dict[str, Any], matmul_flops_per_second: Mapping[str, float | None], topology: Topology | None = None
) -> None:
    """Make pytest-benchmark's account of the machine fit for comparing runs.

    The processor keeps its name and its cores, without the long list of its flags and a clock that differs from one
    second to the next. `fingerprint` is equal where everything is that decides what is compiled and how fast it can
    be: processor, devices, versions, flags and how memory is allocated. The measured speed is not part of it.
    `counters_fingerprint` is equal where the compiled programs can be compared exactly: it leaves out what they do not
    depend on.
    """
    info["cpu"] = {key: info["cpu"].get(key) for key in ("arch", "brand_raw", "count")}
    info["versions"] = {"python": info["python_version"]} | {package: version(package) for package in PACKAGES}
    facts = compiler_facts(topology)
    info |= facts
    info["virtual_devices"] = info["platform"] == "cpu"
    info["glibc_tunables"] = glibc_tunables()
    decisive = {name: info[name] for name in ("cpu", "versions", "glibc_tunables")}
    info["fingerprint"] = fingerprint(decisive | facts)
    info["counters_fingerprint"] = fingerprint(facts)
    info["matmul_flops_per_second"] = dict(matmul_flops_per_second)


def glibc_tunables() -> str:
    """How the C library was told to allocate memory, which decides how fast a step is and not what it computes."""
    return os.environ.get("GLIBC_TUNABLES", "")


def compiler_facts(topology: Topology | None = None) -> dict[str, Any]:
    """All that programs depend on that are compiled here, be it for devices that are not, besides what is compiled."""
    devices = topology.devices() if topology else jax.devices()
    facts = {
        "compiler_versions": {package: version(package) for package in COMPILER},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "libtpu_init_args": os.environ.get("LIBTPU_INIT_ARGS", ""),
        "jax_settings": " ".join(f"{name}={getattr(jax.config, name, None)}" for name in SETTINGS),
        "platform": devices[0].platform,
        "platform_version": get_backend().platform_version,  # of CUDA, libtpu and the like
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "architecture": platform.machine(),
        # Of one alone nothing is said, as before there could be several: the facts are those of earlier reports.
        **({"process_count": jax.process_count()} if jax.process_count() > 1 else {}),
    }
    return facts | ({"topology": str(topology), "platform_version": topology.compiler_version} if topology else {})


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that are equal for equal facts, whatever their order.

    >>> fingerprint({"jax": "0.10", "cpu": "EPYC"}) == fingerprint({"cpu": "EPYC", "jax": "0.10"})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def matmul_flops_per_second(dtype: str) -> float:
    """FLOPs per second of square matmuls, one after another, on one device: the fastest block.

    Virtual devices share the cores of one machine, and this is then the rate of all its cores.
    """
    size = 1024 if jax.devices()[0].platform == "cpu" else 8192
    x_DD = jax.random.normal(jax.random.key(0), (size, size), dtype)
    w_DD = x_DD / math.sqrt(size)  # keeps the variance of what it multiplies
    with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):  # as the steps multiply
        program = jax.jit(lambda x, w: (x @ w, {}), donate_argnums=0).lower(x_DD, w_DD).compile()
    training = Training(program, x_DD, [w_DD], alone=True)
    turns = Turns(steps_per_block(training))
    take_turns({"matmul": training}, {"matmul": turns}, MATMUL_ROUNDS, begin=lambda name: None)
    if turns.error:
        raise turns.error
    return 2 * size**3 / min(turns.seconds)
