"""Files that commands write, with made-up numbers: runs, searches, traces, training logs, and tables of predictions."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from results.records import predictions as columns
from results.records.documents import NUMBERS, SCHEMA_VERSION
from results.records.training import SCHEMA_VERSION as OF_LOGS
from tests.results.synthetic import MACHINE

GIB = 2**30
LANE = {"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": "compute"}}
SPAN = {"ph": "X", "pid": 0, "name": "dot", "cat": "compute", "ts": 0, "dur": 1000}
SCHEDULE = {"schedule": "gpipe", "chunks": 1, "stages": [[[{"kind": "F", "microbatch": 0, "chunk": 0}]]]}
"""The schedule of one forward pass."""
STEPS = np.arange(10, 60, 10)
"""Steps of a training log."""


def candidate(strategy: str, gib: float | None, seconds: float | None, **others: Any) -> dict[str, Any]:
    """A candidate with this memory, in GiB, and this predicted time."""
    status = "infeasible" if gib is None else "too_large" if seconds is None else "fits"
    layout = {"strategy": strategy, "mesh": f"{strategy}=16", "microbatches": 1, "remat": "dots", "options": {}}
    formulas = {"needed_bytes": gib and gib * GIB, "predicted_seconds": seconds, "bound_seconds": seconds and 1.0}
    sizes = {"scaling": None, "devices": 16, "global_batch_sequences": 64, "rank": 1, "status": status}
    return layout | dict.fromkeys(NUMBERS) | sizes | {"waits_for": {"matmuls": 0.5}} | formulas | others


def search(*candidates: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The document of a search."""
    where = {"topology": "v5e:4x4", "devices": 16, "capacity_bytes": 16 * GIB, "usable_bytes": 14 * GIB}
    work = {"preset": "gpt2", "param_count": 124 * 10**6, "dtype": "bfloat16"}
    work |= {"global_batch_sequences": 64, "sequence_tokens": 1024}
    known = {"kind": "search", "schema_version": SCHEMA_VERSION, "machine": "meshmark_tpus", "interval": [0.5, 2.0]}
    return known | where | work | {"candidates": [*candidates]} | facts


def trace(*events: Any, kind: str = "replay", devices: str = "v5e:4x4") -> dict[str, Any]:
    """The trace of a step."""
    return {"otherData": {"kind": kind, "case": "fsdp", "devices": devices}, "traceEvents": [*events]}


def run(*rows: dict[str, Any], **machine: Any) -> dict[str, Any]:
    """A file as pytest-benchmark writes it."""
    return {"machine_info": MACHINE | machine, "benchmarks": rows}


def predictions(cell: str) -> str:
    """A table of predictions with this cell for the measured seconds."""
    names = [*columns.NUMBERS, *columns.TEXTS]
    cells = [f'"{cell}"' if name == "measured_seconds" else "" if name in columns.TEXTS else "1" for name in names]
    return f"{','.join(names)}\n{','.join(cells)}\n"


def point(scaling: str, devices: int, seconds: float | None, limit: str | None = None) -> dict[str, Any]:
    """A point of a step with this predicted time."""
    batch = 64 if scaling == "strong" else 4 * devices
    used = None if seconds is None else batch * 1024 / seconds / devices / 8192
    known = {"model_flops_utilization": used, "waits_for": limit and {limit: 0.5}, "mesh": f"fsdp={devices}"}
    sizes = {"scaling": scaling, "devices": devices, "global_batch_sequences": batch}
    return candidate("fsdp", seconds and 1.0, seconds, **known, **sizes)


def spans(*timed: tuple[str, float, float] | tuple[str, float, float, str], pid: int = 0) -> list[dict[str, Any]]:
    """Events of a device: of each span its lane, start and length in milliseconds, and its name if it matters."""
    lanes = dict.fromkeys(lane for lane, *_ in timed)
    events: list[dict[str, Any]] = [LANE | {"pid": pid, "args": {"name": lane}} for lane in lanes]
    for lane, start, length, *name in timed:
        events.append(SPAN | {"pid": pid, "name": (*name, "x")[0], "cat": lane, "ts": 1e3 * start, "dur": 1e3 * length})
    return events


def log(folder: Path, strategy: str = "single", mesh: str = "data=1", apart: float = 0.0, **facts: Any) -> Path:
    """Write a training log whose losses are apart from those of `single` at every second step."""
    first = {"kind": "run", "schema_version": OF_LOGS, "strategy": strategy, "mesh": mesh, "preset": "nano"}
    first |= {"parameters": 1_635_584, "device_kind": "cpu", "training": {"batch_size": 16, "learning_rate": 1e-3}}
    first |= {"corpus": {"name": "/somewhere/words.txt", "sha256": "abc", "tokens": "chars"}}
    losses = 5 / np.sqrt(STEPS) + apart * (STEPS // 10 % 2)
    steps = ({"kind": "step", "step": int(step), "loss": loss} for step, loss in zip(STEPS, losses, strict=True))
    lines = [first | facts, *steps, {"kind": "evaluation", "step": 50, "loss": 1 + apart}]
    path = folder / f"{strategy}-{mesh}" / "log.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def carried(path: Path) -> dict[str, Any]:
    """The data of a page."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert len(found) == 1
    return json.loads(found[0])


def searches() -> dict[str, dict[str, Any]]:
    """Files of `meshmark search`: a good one, one with the ending of a picture, and bad ones."""
    row = candidate("data", 1, 1.0)
    good = search(row)
    return {
        "found.json": good,
        "found.png": good,
        "texts.json": good | {"candidates": [row | {"needed_bytes": "many"}]},
        "no-chips.json": good | {"devices": 0},
        "old.json": good | {"kind": "feasibility", "schema_version": 1},
    }
