"""Rows of measured training runs, as steps that the formulas know.

The columns are those of results/published. One row is one run: model, mesh, batch, device, software and the seconds of
a step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.devices.topology import CLOUD_NAMES, Topology
from benchmarks.seconds.stack import MEGATRON, MPT, Stack
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.costs.predict import Cost, predict
from strategies.mesh import MeshSpec

COLUMNS = (
    *("stack", "device", "devices", "devices_per_host", "layers", "embed", "heads", "mlp", "vocab", "sequence"),
    *("batch_size", "microbatches", "data", "fsdp", "tensor", "pipeline", "schedule", "recompute"),
    *("sequence_parallel", "optimizer_sharded", "dtype"),
)
"""Columns that a row needs. `step_seconds`, `source` and `chunks` are read where there are such."""
AXES = "data", "fsdp", "pipeline", "tensor"
DEVICES = {
    **dict.fromkeys(("h100_80gb", "h100_sxm", "h100_sxm5", "h100_80gb_hbm3", "h100_sxm_80gb"), "h100"),
    **dict.fromkeys(("h200_sxm", "h200_141gb"), "h200"),
    **dict.fromkeys(("a100_sxm_80gb", "a100_sxm4_80gb"), "a100_80gb"),
    **dict.fromkeys(("a100_sxm_40gb", "a100_sxm4_40gb"), "a100_40gb"),
    **dict.fromkeys(("v100_16gb", "v100_32gb", "v100_sxm2"), "v100"),
}
"""Other names of kinds of devices. "a100" alone is a name of its own: it says nothing of the memory."""
RECOMPUTE = {"full": "full", "selective": "dots", "none": "none"}
SCHEDULES = {"1f1b": "1f1b", "interleaved": "interleaved", "gpipe": "gpipe"}
ZERO = {"zero1": "zero1", "true": "zero1", "zero2": "zero2"}


@dataclass(frozen=True)
class Run:
    """A measured run.

    Attributes:
        cost: its step by formulas.
        topology: its devices.
        stack: its software.
        step_seconds: measured; None if the row has none.
    """

    cost: Cost
    topology: Topology
    stack: Stack
    step_seconds: float | None


def run_of(row: Mapping[str, Any]) -> Run:
    """The run of a row.

    Raises:
        Infeasible: the formulas do not know such a step; the message says what they lack.
    """
    kind = device_of(row)
    stack = stack_of(str(row["stack"]))
    devices, per_host = int(row["devices"]), int(row["devices_per_host"])
    hosts = max(1, devices // per_host)
    try:
        topology = Topology(CLOUD_NAMES.get(kind, kind), (hosts, devices // hosts))
    except ValueError as error:
        raise Infeasible(str(error)) from error
    config = GPTConfig(
        layers=int(row["layers"]),
        embed=int(row["embed"]),
        heads=int(row["heads"]),
        vocab=int(row["vocab"]),
        sequence=int(row["sequence"]),
        mlp=int(row["mlp"]),
    )
    cost = predict(strategy_of(row), config, mesh_of(row, devices), training_of(row, stack), "cuda")
    return Run(cost, topology, stack, number(row, "step_seconds"))


def number(row: Mapping[str, Any], column: str) -> float | None:
    """The number in a column; None if there is none."""
    text = str(row.get(column) or "").strip().lower()
    return None if text in ("", "nan", "none") else float(text)


def device_of(row: Mapping[str, Any]) -> str:
    """The kind of devices of a row, in lower case with underscores.

    >>> device_of({"device": "A100-80GB"}), device_of({"device": "NVIDIA H100 SXM"})
    ('a100_80gb', 'h100')
    """
    name = str(row["device"]).strip().lower().replace("-", "_").replace(" ", "_").removeprefix("nvidia_")
    return DEVICES.get(name, name)


def stack_of(name: str) -> Stack:
    """The stack that a table names.

    Raises:
        Infeasible: its kernels are not known here.
    """
    if "megatron" in name.lower():
        return MEGATRON
    if "fsdp" in name.lower():
        return MPT
    raise Infeasible(f"the kernels of stack {name!r} are not known; known are {MEGATRON.name} and {MPT.name}")


def mesh_of(row: Mapping[str, Any], devices: int) -> MeshSpec:
    """The mesh of a row, with the axes of more than one device."""
    sizes = {axis: int(row[axis]) for axis in AXES}
    if (size := math.prod(sizes.values())) != devices:
        raise Infeasible(f"{sizes} are {size} devices, and the row has {devices}")
    if _sharded(row) in ZERO:
        sizes = {**sizes, "data": sizes["data"] * sizes["fsdp"], "fsdp": 1}
    return MeshSpec(tuple((axis, size) for axis, size in sizes.items() if size > 1) or (("data", 1),))


def strategy_of(row: Mapping[str, Any]) -> str:
    """The strategy that spreads a step as the row says."""
    axes = {axis for axis in AXES if int(row[axis]) > 1}
    if _sharded(row) in ZERO and axes <= {"data", "fsdp"}:
        return ZERO[_sharded(row)]
    if not axes:
        return "single"
    if len(axes) == 1:
        return axes.pop()
    return "hsdp" if axes == {"data", "fsdp"} else "three_d"


def training_of(row: Mapping[str, Any], stack: Stack) -> TrainConfig:
    """The training options of a row. What the stack hides, it hides in its own ways (`Stack.hides`)."""
    recompute, schedule = str(row["recompute"]).lower(), str(row["schedule"]).lower()
    if recompute not in RECOMPUTE:
        raise Infeasible(f"recompute={recompute!r} is not known; it can be {', '.join(RECOMPUTE)}")
    options: dict[str, Any] = {
        "remat": RECOMPUTE[recompute],
        "schedule": SCHEDULES.get(schedule, "1f1b"),
        "chunks": int(number(row, "chunks") or 2),
    }
    return TrainConfig(
        int(row["batch_size"]),
        int(row["microbatches"]),
        dtype=str(row["dtype"]),  # pyright: ignore[reportArgumentType]: checked by TrainConfig
        sequence_parallel=str(row["sequence_parallel"]).lower() == "true",
        reduce_dtype=stack.reduce_dtype,
        reduce="step",
        prefetch="off",
        halves="off",
        **options,
    )


def _sharded(row: Mapping[str, Any]) -> str:
    return str(row.get("optimizer_sharded", "")).lower()
