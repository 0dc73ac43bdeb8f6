"""Rows of measured training runs, as steps that the formulas know.

The columns are those of results/published. One row is one run: model, mesh, batch, device, software and the seconds of
a step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.devices.topology import CLOUD_NAMES, Topology
from benchmarks.seconds.cells import (
    DTYPES,
    RECOMPUTED,
    SHARDED,
    TRUTHS,
    Row,
    device,
    named,
    schedule,
    seconds,
    text,
    told,
    whole,
)
from benchmarks.seconds.stack import MEGATRON, MPT, Stack
from strategies import zero
from strategies.config import GPTConfig, TrainConfig
from strategies.costs.predict import Cost, predict, predict_axes
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.three_d import THREE_D

COLUMNS = (
    *("stack", "device", "devices", "devices_per_host", "layers", "embed", "heads", "mlp", "vocab", "sequence"),
    *("batch_size", "microbatches", "data", "fsdp", "tensor", "pipeline", "schedule", "recompute"),
    *("sequence_parallel", "optimizer_sharded", "dtype"),
)
"""Columns that a row needs. `step_seconds`, `source`, `microbatch_size` and `chunks` are read where there are such."""
AXES = "data", "fsdp", "pipeline", "tensor"


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


def run_of(row: Row) -> Run:
    """The run of a row.

    Raises:
        Infeasible: the formulas do not know such a step, or a cell cannot be read; the message says which.
    """
    stack = stack_of(row)
    names = "layers", "embed", "heads", "vocab", "sequence", "mlp"
    layers, embed, heads, vocab, sequence, mlp = (whole(row, name) for name in names)
    config = GPTConfig(layers, embed, heads, vocab, sequence, mlp)
    sizes = sizes_of(row)
    cost = cost_of(row, sizes, config, training_of(row, stack))
    require_batch(row, sizes)
    return Run(cost, topology_of(row), stack, seconds(row, "step_seconds"))


def cost_of(row: Row, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig) -> Cost:
    """The step of a row by formulas.

    Weights whose optimizer is sharded over data are gathered in the compute dtype, and updated in float32.

    Raises:
        Infeasible: the formulas do not know such a step.
    """
    mesh = MeshSpec(tuple((axis, size) for axis, size in sizes.items() if size > 1) or (("data", 1),))
    strategy, sharded = strategy_of(row, sizes), sharded_of(row)
    if mesh.sizes.get("data", 1) == 1 or sharded not in ("zero1", "zero2"):
        return predict(strategy, config, mesh, train, "cuda")
    train = replace(train, master="float32")
    if strategy == sharded:
        return predict(strategy, config, mesh, train, "cuda")
    # Megatron-LM's distributed optimizer (megatron/optimizer/distrib_optimizer.py), which no strategy here has. It
    # splits a flat buffer of all weights: whatever tensor splits is not split again.
    data = replace(zero.AXIS2 if sharded == "zero2" else zero.AXIS1, may_split_dim_twice=False)
    others = [axis for axis in THREE_D.axes if axis.name not in ("data", "fsdp")]
    return predict_axes((data, *others), config, mesh, train, "cuda")


def topology_of(row: Row) -> Topology:
    """The devices of a row. The last host may not be full.

    Raises:
        Infeasible: such devices are not known.
    """
    devices, per_host = whole(row, "devices"), whole(row, "devices_per_host")
    kind = device(row)
    try:
        return Topology(CLOUD_NAMES.get(kind, kind), (math.ceil(devices / per_host), min(devices, per_host)))
    except ValueError as error:
        raise Infeasible(str(error)) from error


def stack_of(row: Row) -> Stack:
    """The software of a row.

    Raises:
        Infeasible: its kernels are not known here.
    """
    name = text(row, "stack")
    if "megatron" in name:
        return MEGATRON
    if "fsdp" in name or "mpt" in name:
        return MPT
    raise Infeasible(
        f"the kernels of stack {told(row, 'stack')} are not known; known are {MEGATRON.name} and {MPT.name}"
    )


def sharded_of(row: Row) -> str:
    """What a row shards besides the batch: "zero1", "zero2", "zero3", or "" for nothing.

    A row that only says yes means zero3 with an fsdp axis, and otherwise Megatron-LM's distributed optimizer, zero1.
    """
    whole_yes = "zero3" if whole(row, "fsdp", 1) > 1 else "zero1"
    names = {name: whole_yes if true else "" for name, true in TRUTHS.items()}
    return named(row, "optimizer_sharded", {**names, **SHARDED})


def sizes_of(row: Row) -> dict[str, int]:
    """Sizes of the mesh axes. What shards parameters is called fsdp here, and what shards less is called data.

    Raises:
        Infeasible: their product is not the number of devices.
    """
    sizes = {axis: whole(row, axis, 1) for axis in AXES}
    if (size := math.prod(sizes.values())) != (devices := whole(row, "devices")):
        raise Infeasible(f"{sizes} are {size} devices, and the row has {devices}")
    sharded = sharded_of(row)
    if sharded == "zero3" and sizes["fsdp"] == 1:
        return {**sizes, "data": 1, "fsdp": sizes["data"]}
    if sharded != "zero3":
        return {**sizes, "data": sizes["data"] * sizes["fsdp"], "fsdp": 1}
    return sizes


def require_batch(row: Row, sizes: dict[str, int]) -> None:
    """Refuse a row whose batch is not its microbatches on all replicas: a column means something else there.

    Raises:
        Infeasible: it is not.
    """
    replicas, parts = sizes["data"] * sizes["fsdp"], whole(row, "microbatches")
    each = whole(row, "microbatch_size", max(1, whole(row, "batch_size") // (parts * replicas)))
    if each * parts * replicas != whole(row, "batch_size"):
        problem = f"{parts} microbatches of {each} on {replicas} replicas are {each * parts * replicas} sequences"
        raise Infeasible(f"{problem}, and batch_size is {whole(row, 'batch_size')}")


def strategy_of(row: Row, sizes: Mapping[str, int]) -> str:
    """The strategy that spreads a step as the row says, but for an optimizer that is sharded beside other axes."""
    axes, sharded = {axis for axis, size in sizes.items() if size > 1}, sharded_of(row)
    if not axes:
        return "single"
    if axes == {"data"} and sharded in ("zero1", "zero2"):
        return sharded
    if len(axes) == 1:
        return axes.pop()
    return "hsdp" if axes == {"data", "fsdp"} else "three_d"


def training_of(row: Row, stack: Stack) -> TrainConfig:
    """The training options of a row. Its stack decides what overlaps."""
    name, chunks = schedule(row)
    return TrainConfig(
        whole(row, "batch_size"),
        whole(row, "microbatches"),
        dtype=named(row, "dtype", DTYPES),
        remat=named(row, "recompute", RECOMPUTED),
        schedule=name,  # pyright: ignore[reportArgumentType]: one of SCHEDULES
        chunks=max(2, chunks),
        sequence_parallel=named(row, "sequence_parallel", TRUTHS),
        reduce_dtype=stack.reduce_dtype,
        reduce="step",
        prefetch="off",
        halves="off",
    )
