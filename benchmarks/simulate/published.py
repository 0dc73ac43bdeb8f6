"""Rows of measured training runs, as steps that the formulas know.

The columns are those of results/published. One row is one run: model, mesh, batch, device, software and the seconds of
a step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from benchmarks.devices.topology import CLOUD_NAMES, Topology
from benchmarks.simulate.stack import MEGATRON, MPT, Stack
from strategies import zero
from strategies.config import GPTConfig, TrainConfig
from strategies.costs.predict import Cost, predict, predict_axes
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.schema import Count, SchemaError, checked
from strategies.three_d import THREE_D

TableRow = Mapping[str, Any]
"""A row of a table, with texts or values; other columns than those of `Published` mean nothing here."""
AXES = "data", "fsdp", "pipeline", "tensor"
STACK_OF = {MEGATRON.name: MEGATRON, "Megatron-DeepSpeed": MEGATRON, MPT.name: MPT}
REMAT = {"full": "full", "selective": "dots", "none": "none"}


class Published(msgspec.Struct, frozen=True):
    """The columns of a row. Empty cells have defaults, if there are any.

    Attributes:
        microbatch_size: sequences of a microbatch on one replica, to check the others.
        recompute: "selective" recomputes attention.
        optimizer_sharded: which of ZeRO's stages is used along the data and fsdp axes.
        chunks: model chunks on a pipeline stage, with the interleaved schedule.
        step_seconds: measured.
    """

    stack: str
    device: str
    devices: Count
    devices_per_host: Count
    layers: Count
    embed: Count
    heads: Count
    mlp: Count
    vocab: Count
    sequence: Count
    batch_size: Count
    microbatches: Count
    data: Count
    fsdp: Count
    tensor: Count
    pipeline: Count
    recompute: Literal["full", "selective", "none"]
    sequence_parallel: bool
    optimizer_sharded: Literal["none", "zero1", "zero2", "zero3"]
    dtype: Literal["float16", "bfloat16"]
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1"] = "1f1b"
    chunks: Count = 1
    microbatch_size: Count | None = None
    step_seconds: Annotated[float, Meta(ge=1e-6, le=1e7)] | None = None

    @classmethod
    def of(cls, row: TableRow) -> "Published":
        """The columns of a row.

        Raises:
            Infeasible: a cell is missing or cannot be read.
        """
        try:
            return checked({name: cell for name, cell in row.items() if cell != ""}, cls, "the row", texts=True)
        except SchemaError as error:
            raise Infeasible(str(error)) from None

    @property
    def kind(self) -> str:
        """The kind of devices, as machine files name it."""
        return self.device.lower()


COLUMNS = tuple(field.name for field in msgspec.structs.fields(Published) if field.required)
"""Columns that a table needs."""


@dataclass(frozen=True)
class PublishedRun:
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


def run_of(row: TableRow) -> PublishedRun:
    """The run of a row.

    Raises:
        Infeasible: the formulas do not know such a step, or a cell cannot be read; the message says which.
    """
    published = Published.of(row)
    if published.stack not in STACK_OF:
        raise Infeasible(f"the kernels of stack {published.stack!r} are not known; known are {', '.join(STACK_OF)}")
    stack, sizes = STACK_OF[published.stack], sizes_of(published)
    config = GPTConfig(
        published.layers, published.embed, published.heads, published.vocab, published.sequence, published.mlp
    )
    cost = cost_of(published, sizes, config, training_of(published, stack))
    require_batch(published, sizes["data"] * sizes["fsdp"])
    return PublishedRun(cost, topology_of(published), stack, published.step_seconds)


def cost_of(row: Published, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig) -> Cost:
    """The step of a row by formulas.

    Weights whose optimizer is sharded over data are gathered in the compute dtype, and updated in float32.

    Raises:
        Infeasible: the formulas do not know such a step.
    """
    mesh = MeshSpec(tuple((axis, size) for axis, size in sizes.items() if size > 1) or (("data", 1),))
    strategy, sharded = strategy_of(row, sizes), row.optimizer_sharded
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


def topology_of(row: Published) -> Topology:
    """The devices of a row. The last host may not be full.

    Raises:
        Infeasible: such devices are not known.
    """
    hosts = math.ceil(row.devices / row.devices_per_host)
    try:
        return Topology(CLOUD_NAMES.get(row.kind, row.kind), (hosts, min(row.devices, row.devices_per_host)))
    except ValueError as error:
        raise Infeasible(str(error)) from error


def sizes_of(row: Published) -> dict[str, int]:
    """Sizes of the mesh axes. What shards parameters is called fsdp here, and what shards less is called data.

    Raises:
        Infeasible: their product is not the number of devices.
    """
    sizes: dict[str, int] = {axis: getattr(row, axis) for axis in AXES}
    if (size := math.prod(sizes.values())) != row.devices:
        raise Infeasible(f"{sizes} are {size} devices, and the row has {row.devices}")
    if row.optimizer_sharded != "zero3":
        return {**sizes, "data": row.data * row.fsdp, "fsdp": 1}
    return {**sizes, "data": 1, "fsdp": row.data} if row.fsdp == 1 else sizes


def require_batch(row: Published, replicas: int) -> None:
    """Refuse a row whose batch is not its microbatches on all replicas: a column means something else there.

    Raises:
        Infeasible: it is not.
    """
    size = row.microbatch_size or max(1, row.batch_size // (row.microbatches * replicas))
    if (batch := size * row.microbatches * replicas) != row.batch_size:
        problem = f"{row.microbatches} microbatches of {size} on {replicas} replicas are {batch} sequences"
        raise Infeasible(f"{problem}, and batch_size is {row.batch_size}")


def strategy_of(row: Published, sizes: Mapping[str, int]) -> str:
    """The strategy that spreads a step as the row says, but for an optimizer that is sharded beside other axes."""
    axes = {axis for axis, size in sizes.items() if size > 1}
    if not axes:
        return "single"
    if axes == {"data"} and row.optimizer_sharded in ("zero1", "zero2"):
        return row.optimizer_sharded
    if len(axes) == 1:
        return axes.pop()
    return "hsdp" if axes == {"data", "fsdp"} else "three_d"


def training_of(row: Published, stack: Stack) -> TrainConfig:
    """The training options of a row. Its stack decides what overlaps."""
    return TrainConfig(
        row.batch_size,
        row.microbatches,
        dtype=row.dtype,
        remat=REMAT[row.recompute],  # pyright: ignore[reportArgumentType]: a value of the option
        schedule=row.schedule,
        chunks=max(2, row.chunks),
        sequence_parallel=row.sequence_parallel,
        reduce_dtype=stack.reduce_dtype,
        reduce="step",
        prefetch="off",
        halves="off",
    )
