"""Synthetic records: complete files as `pytest benchmarks` writes them, with made-up numbers."""

import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

MIB = 2**20

# Made-up step times over single's, and what stays whole on a device instead of being split over all.
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


def row(strategy: str = "single", mesh: str = "data=1", batch: int = 16, **changes: Any) -> dict[str, Any]:
    """Make one row as pytest-benchmark writes it; `changes` replaces facts of its extra_info."""
    devices = prod(int(axis.split("=")[1]) for axis in mesh.split(","))
    slowdown, whole = STRATEGIES[strategy]
    slowdown += 0.01 * len(mesh) * (devices > 1)
    held = int(40 * MIB * (whole + (1 - whole) / devices))
    seconds = 0.06 * batch * slowdown
    facts = {
        "schema_version": 1,
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
        "dtype": "float32",
        "remat": "none",
        "tokens_per_second": 128 * batch / seconds,
        "memory.argument_bytes": 3 * held + 1024 * batch,
        "memory.parameter_bytes": held,
        "memory.optimizer_bytes": 2 * held,
        "memory.temp_bytes": held + 10 * MIB * batch // devices,
        "memory.output_bytes": 3 * held + 16,
        "memory.alias_bytes": 3 * held,
        "memory.total_bytes": 4 * held + 1024 * batch + 10 * MIB * batch // devices + 16,
        "matches_single": True,
    } | changes
    return {
        "name": f"test_step[{strategy}-{mesh}-b{batch}]",
        "stats": {"data": [seconds]} if facts["status"] == "ok" else None,
        "extra_info": facts,
    }


def failed(status: str, strategy: str, mesh: str, batch: int = 16) -> dict[str, Any]:
    """Make a row of a case that gave no numbers."""
    unknown = {key: None for key in row()["extra_info"] if key.startswith(("memory.", "tokens_", "matches_"))}
    return row(strategy, mesh, batch, **unknown | {"status": status, "reason": "made up"})


def sweep(batches: Iterable[int] = (8, 16)) -> list[dict[str, Any]]:
    """Make a row of every strategy on its meshes, at each batch."""
    return [row(strategy_of(mesh), mesh, batch) for batch in batches for mesh in MESHES]


def strategy_of(mesh: str) -> str:
    """Name the strategy that uses a mesh of these axes."""
    if mesh == "data=1":
        return "single"
    return "three_d" if "," in mesh else mesh.split("=")[0]


def write_run(path: Path, rows: list[dict[str, Any]], fingerprint: str = "machine-a") -> Path:
    """Write a file as pytest-benchmark does, with just what is read of it."""
    path.write_text(json.dumps({"machine_info": {"fingerprint": fingerprint}, "benchmarks": rows}), encoding="utf-8")
    return path
