"""Rows of measured training runs (published_row.py), as steps that the formulas know."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import CLOUD_NAMES, Topology, balanced_factors
from benchmarks.simulate.published_row import Published, TableRow
from benchmarks.simulate.stack import (
    MAXTEXT,
    MEGATRON,
    MEGATRON_BRIDGE,
    MEGATRON_CORE,
    MPT,
    TORCHTITAN,
    Stack,
)
from strategies import zero
from strategies.config import Dtype, Remat, TrainConfig
from strategies.costs.predict import Cost, predict, predict_axes
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.three_d import THREE_D

STACK_OF: Mapping[str, tuple[Stack, ...]] = {
    "Megatron-LM": (MEGATRON, MEGATRON_CORE),
    "Megatron-DeepSpeed": (MEGATRON,),
    "PyTorch FSDP": (MPT,),
    "Megatron-Bridge": (MEGATRON_BRIDGE,),
    "NeMo": (MEGATRON_BRIDGE,),
    "torchtitan": (TORCHTITAN,),
    "KempnerForge": (TORCHTITAN,),  # FSDP2 and torch.compile, too
    "MaxText": (MAXTEXT,),
}
"""Stacks as tables name them, without a version -> the one with GPT-2's blocks, and the one with others."""
AXES = "data", "fsdp", "pipeline", "context", "tensor"
REMAT: Mapping[str, Remat] = {
    "full": "full",
    "selective": "dots",
    "none": "none",
    "selective (op)": "dots",
    "selective (per op)": "dots",  # torchtitan keeps the outputs of attention and of every second matmul
    "decoder_layer_input offload (custom)": "full",  # MaxText keeps the inputs of layers in the memory of the host
}
"""What published tables say of recomputation -> what a step recomputes."""
DTYPES: Mapping[str, Dtype] = {"float16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}
"""Spellings of dtypes whose matmuls are predicted."""


@dataclass(frozen=True)
class PublishedRun:
    """A measured run.

    Attributes:
        kind: of its devices, as machine files name it.
        cost: its step by formulas.
        topology: its devices.
        stack: its software.
        step_seconds: measured; None if the row has none, or contradicts itself.
    """

    kind: str
    cost: Cost
    topology: Topology
    stack: Stack
    step_seconds: float | None


def measured_seconds(row: TableRow) -> float | None:
    """Measured seconds of a step; None if the row has none, contradicts itself, or cannot be read."""
    try:
        return Published.of(row).measured_seconds
    except Infeasible:
        return None


def run_of(row: TableRow) -> PublishedRun:
    """The run of a row.

    Raises:
        Infeasible: the formulas do not know such a step, or a cell cannot be read; the message says which.
    """
    published = Published.of(row)
    if published.experts:
        raise Infeasible("mixtures of experts are not predicted")
    stack = stack_of(published)
    published = completed(published, stack)
    sizes = sizes_of(published)
    cost = cost_of(published, sizes, config_of(published), training_of(published, stack))
    require_batch(published)
    return PublishedRun(published.kind, cost, topology_of(published), stack, published.measured_seconds)


def stack_of(row: Published) -> Stack:
    """The stack of a row.

    Raises:
        Infeasible: it is not known.
    """
    name = re.sub(r" [0-9.]+$", "", row.stack)
    stacks = STACK_OF.get(name, ())
    if not stacks:
        raise Infeasible(f"the kernels of stack {name!r} are not known; known are {', '.join(STACK_OF)}")
    if row.block == "gpt2":
        return stacks[0]
    if stacks[-1] == MEGATRON:
        raise Infeasible(f"{row.stack} is known as it was in 2022, when it had no {row.block} blocks")
    return stacks[-1]


def completed(row: Published, stack: Stack) -> Published:
    """The row with what its stack does where the row does not say, and with the number of its microbatches.

    Raises:
        Infeasible: neither the number nor the size of microbatches is there.
    """
    recipe = stack.recipe
    microbatches = row.microbatches
    if not microbatches and row.microbatch_size:
        microbatches = max(1, row.batch_size // (row.microbatch_size * row.replicas))
    if not microbatches:
        raise Infeasible("the row lacks microbatches, or microbatch_size from which they follow")
    return msgspec.structs.replace(
        row,
        microbatches=microbatches,
        recompute=row.recompute or recipe.recompute,
        sequence_parallel=recipe.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel,
        optimizer_sharded=row.optimizer_sharded or ("zero3" if row.fsdp > 1 else recipe.optimizer_sharded),
    )


def config_of(row: Published) -> GPTConfig:
    """The model of a row.

    Raises:
        Infeasible: there are no formulas for its blocks, or its sizes do not fit together.
    """
    if row.mlp is None:
        raise Infeasible("the row lacks mlp")
    return GPTConfig(
        row.layers,
        row.embed,
        row.heads,
        row.vocab,
        row.sequence,
        row.mlp,
        tied=row.block == "gpt2" if row.tied is None else row.tied,
        head_size=row.head_dim,
        key_heads=row.kv_heads,
        block=row.block,
    )


def cost_of(row: Published, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig) -> Cost:
    """The step of a row by formulas.

    Weights whose optimizer is sharded over data are gathered in the compute dtype, and updated in float32.

    Raises:
        Infeasible: the formulas do not know such a step.
    """
    if row.context > 1 and row.optimizer_sharded != "none":
        raise Infeasible("no strategy shards an optimizer over data and context")
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
    """The devices of a row. The last host may not be full. A torus is as near to a square or a cube as it can be.

    Raises:
        Infeasible: such devices are not known.
    """
    kind = CLOUD_NAMES.get(row.kind, row.kind)
    shape = math.ceil(row.devices / row.devices_per_host), min(row.devices, row.devices_per_host)
    if kind in CHIPS and CHIPS[kind].torus_dims:
        shape = balanced_factors(row.devices, CHIPS[kind].torus_dims)
    try:
        return Topology(kind, shape)
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


def require_batch(row: Published) -> None:
    """Refuse a row whose batch is not its microbatches on all replicas: a column means something else there.

    Raises:
        Infeasible: it is not.
    """
    microbatches, replicas = row.microbatches or 1, row.replicas
    size = row.microbatch_size or max(1, row.batch_size // (microbatches * replicas))
    if (batch := size * microbatches * replicas) != row.batch_size:
        problem = f"{microbatches} microbatches of {size} on {replicas} replicas are {batch} sequences"
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
    """The training options of a row. Its stack decides what overlaps.

    Raises:
        Infeasible: the dtype or the recomputation is not known.
    """
    for name, value, known in (("dtype", row.dtype, DTYPES), ("recompute", row.recompute, REMAT)):
        if value not in known:
            raise Infeasible(f"{name} is {value!r}; what is predicted is {', '.join(known)}")
    return TrainConfig(
        row.batch_size,
        row.microbatches or 1,
        dtype=DTYPES[row.dtype],
        remat=REMAT[row.recompute or "none"],
        schedule=row.schedule,
        chunks=max(2, row.virtual_stages),
        sequence_parallel=bool(row.sequence_parallel),
        reduce_dtype=stack.reduce_dtype,
        reduce="step",
        prefetch="off",
        halves="off",
    )
