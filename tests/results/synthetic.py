"""Synthetic records: complete files as `pytest benchmarks` writes them, with made-up numbers."""

import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.cases.columns import SCHEMA_VERSION
from results.gates.counters import COUNTERS

MIB = 2**20
MACHINE = {
    "fingerprint": "machine-a",
    "counters_fingerprint": "compiler-a",
    "cpu": {"arch": "X86_64", "brand_raw": "made up", "count": 2},
    "versions": {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "optax": "0.2.8"},
    "xla_flags": "",
    "libtpu_init_args": "",
    "jax_settings": "jax_enable_x64=False",
    "platform": "cpu",
    "platform_version": "cpu",
    "device_kind": "cpu",
    "device_count": 8,
    "virtual_devices": True,
}

KINDS = "all_reduce", "all_gather", "reduce_scatter", "permute"
# Made-up step times relative to single's, and the fraction of the state that each device replicates.
STRATEGIES = {
    "single": (1.00, 1.0),
    "data": (1.01, 1.0),
    "fsdp": (1.06, 0.0),
    "tensor": (1.32, 0.1),
    "pipeline": (1.17, 0.2),
    "three_d": (1.22, 0.3),
}
MESHES = [
    *("data=1", "data=2", "data=4", "data=8"),
    *("fsdp=2", "fsdp=4", "fsdp=8"),
    *("tensor=2", "tensor=4", "tensor=8"),
    *("pipeline=2", "pipeline=4", "pipeline=8"),
    *("data=2,tensor=2", "pipeline=2,tensor=2", "data=2,pipeline=2"),
    *("data=4,tensor=2", "data=2,tensor=4", "data=4,pipeline=2", "data=2,pipeline=2,tensor=2"),
]
# Counters by kind of collective; rows have zeros where their program has none.
PER_KIND = [
    *(f"compiled.sent_bytes.{kind}.{axis}" for kind in KINDS for axis in ("data", "fsdp", "pipeline", "tensor")),
    *(f"compiled.collectives.{kind}.{where}" for kind in KINDS for where in ("outside_loops", "in_loops")),
]
# Made-up parts of a step's time.
SHARES = {
    "compute": 0.6,
    "exposed_communication": 0.15,
    "schedule_bubble": 0.1,
    "lockstep_bubble": -0.01,
    "recomputation": 0.05,
    "optimizer": 0.1,
    "dispatch": 0.01,
}


def row(strategy: str = "single", mesh: str = "data=1", batch: int = 16, **changes: Any) -> dict[str, Any]:
    """One row as pytest-benchmark writes it; `changes` replaces facts of its extra_info."""
    devices = prod(int(axis.split("=")[1]) for axis in mesh.split(","))
    slowdown, whole = STRATEGIES[strategy]
    slowdown += 0.01 * len(mesh) * (devices > 1)
    held = int(40 * MIB * (whole + (1 - whole) / devices))
    seconds = 0.06 * batch * slowdown
    facts = {
        "schema_version": SCHEMA_VERSION,
        "kind": "timed",
        "status": "ok",
        "reason": None,
        "strategy": strategy,
        "mesh": mesh,
        "devices": devices,
        "platform": "cpu",
        "device_kind": "cpu",
        "virtual_devices": True,
        "preset": "synthetic",
        "param_count": 10_000_000,
        "global_batch_sequences": batch,
        "sequence_tokens": 128,
        "microbatches": 8 if "pipeline" in mesh else 1,
        "processes": 1,
        "options": "",
        "predicted.bubble": 0.2 if "pipeline" in mesh else 0,
        "predicted.lockstep_bubble": 0.1 if "pipeline" in mesh else 0,
        "dtype": "float32",
        "remat": "none",
        "step_seconds_median": seconds,
        "step_seconds_low": 0.97 * seconds,
        "step_seconds_high": 1.04 * seconds,
        "relative_to_single": slowdown,
        "relative_to_single_low": 0.98 * slowdown,
        "relative_to_single_high": 1.03 * slowdown,
        "tokens_per_second": 128 * batch / seconds,
        "canary_ratio": 1.01,
        **{f"attribution.{part}_seconds": share * seconds for part, share in SHARES.items()},
        "canary_ratio_low": 0.98,
        "canary_ratio_high": 1.04,
        "noisy": False,
        "memory.argument_bytes": 3 * held + 1024 * batch,
        "memory.parameter_bytes": held,
        "memory.optimizer_bytes": 2 * held,
        "memory.temp_bytes": held + 10 * MIB * batch // devices,
        "memory.output_bytes": 3 * held + 16,
        "memory.alias_bytes": 3 * held,
        "memory.total_bytes": 4 * held + 1024 * batch + 10 * MIB * batch // devices + 16,
        **compiled(strategy, mesh, batch, devices),
        "matches_single": True,
    } | changes
    return {
        "name": f"test_step[{strategy}-{mesh}-b{batch}]",
        "stats": {"data": [seconds]} if facts["status"] == "ok" else None,
        "extra_info": facts,
    }


def edited(benchmark: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The same row with some of its facts replaced."""
    return benchmark | {"extra_info": benchmark["extra_info"] | facts}


def compiled(strategy: str, mesh: str, batch: int, devices: int) -> dict[str, Any]:
    """Made-up counters of a compiled step: mostly zeros, and two gathers a layer for fsdp."""
    counters: dict[str, Any] = {name: 0 for name in (*COUNTERS, *PER_KIND) if name.startswith("compiled.")}
    counters |= {
        "compiled.flops": 10**9 * batch // devices,
        "compiled.bytes_accessed": 10.0**8 * batch / devices,
        "compiled.instructions": 900,
        "compiled.compilations": 1,
        "compiled.hash": f"{strategy} {mesh} {batch}",
    }
    if strategy == "fsdp":
        counters |= {
            "compiled.sent_bytes": 40 * MIB,
            "compiled.sent_bytes.all_gather.fsdp": 40 * MIB,
            "compiled.collectives.all_gather.in_loops": 2,
        }
    return counters


def failed(status: str, strategy: str, mesh: str, batch: int = 16) -> dict[str, Any]:
    """The row of a case that failed, without numbers."""
    unknown = {
        key: None
        for key in row()["extra_info"]
        if key.startswith(("memory.", "compiled.", "step_", "tokens_", "attribution.", "matches_"))
    }
    return row(strategy, mesh, batch, **unknown | {"status": status, "reason": "made up"})


def sweep(batches: Iterable[int] = (8, 16)) -> list[dict[str, Any]]:
    """A row for every strategy on each of its meshes, at each batch size."""
    return [row(strategy_of(mesh), mesh, batch) for batch in batches for mesh in MESHES]


def strategy_of(mesh: str) -> str:
    """The strategy that uses a mesh of these axes."""
    if mesh == "data=1":
        return "single"
    return "three_d" if "," in mesh else mesh.split("=")[0]


def write_run(path: Path, rows: list[dict[str, Any]], **machine: Any) -> Path:
    """Write a file as pytest-benchmark does, with only what is read of it; `machine` replaces facts of the machine."""
    path.write_text(json.dumps({"machine_info": MACHINE | machine, "benchmarks": rows}), encoding="utf-8")
    return path
