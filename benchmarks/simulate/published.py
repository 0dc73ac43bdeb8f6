"""Rows of measured training runs, as steps that the formulas know.

The columns are those of results/published. One row is one run: model, mesh, batch, device, software and the seconds of
a step.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import CLOUD_NAMES, Topology, balanced_factors
from benchmarks.simulate.stack import (
    MAXTEXT,
    MEGATRON,
    MEGATRON_BRIDGE,
    MEGATRON_CORE,
    MPT,
    TORCHTITAN,
    Stack,
    ZeroStage,
)
from strategies import zero
from strategies.config import Dtype, Remat, TrainConfig
from strategies.costs.predict import Cost, predict, predict_axes
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.schema import Count, Positive, SchemaError, checked
from strategies.three_d import THREE_D

Seconds = Annotated[float, Meta(ge=1e-6, le=1e7)]
TableRow = Mapping[str, Any]
"""A row of a table, with texts or values; other columns than those of `Published` mean nothing here."""
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
KINDS = {"h100_96gb": "h100"}
"""Devices of tables -> kinds in `CHIPS`. The H100 with 96 GB and 500 W has no specifications of its own."""
BLOCKS = {"gpt3": "gpt2", "qwen3": "qwen3", "qwen2": "qwen2"}
"""How the name of a model begins -> its block. Of other names the block is "llama" if the row has `kv_heads`, as only
tables of such models do, and otherwise "gpt2"."""
OTHER_BLOCKS = "gemma", "gemma2", "gemma3", "gemma4", "nemotron", "deepseek", "kimi"
"""Names of models, up to the first "-", whose blocks have other norms, MLPs or attention than any here."""


class Published(msgspec.Struct, frozen=True):
    """The columns of a row. Empty cells have defaults, if there are any.

    Attributes:
        model: its name, which decides on the block (`BLOCKS`).
        kv_heads: heads of keys and of values.
        head_dim: features of a head.
        mlp: hidden features of the MLP; of a gated MLP those of each of its two halves.
        experts: of a mixture of experts; empty for a dense model.
        tied: whether the head is the table of tokens. By default it is with GPT-2's blocks.
        microbatch_size: sequences of a microbatch on one replica.
        microbatches: by default they follow from the batch, the size of a microbatch and the number of replicas.
        recompute: "selective" recomputes attention. Here and in the next two columns the stack decides by default.
        sequence_parallel: whether the tensor axis also splits the tokens between matmuls.
        optimizer_sharded: which of ZeRO's stages is used along the data axis; along the fsdp axis it is the third.
        virtual_stages: model chunks on a pipeline stage, with the interleaved schedule.
        step_seconds: measured.
        tokens_per_second_per_device: measured; a step has `batch_size` x `sequence` tokens.
        contradicts: what of the row contradicts itself. Its seconds are not compared.
    """

    stack: str
    device: str
    devices: Count
    devices_per_host: Count
    layers: Count
    embed: Count
    heads: Count
    vocab: Count
    sequence: Count
    batch_size: Count
    data: Count
    fsdp: Count
    tensor: Count
    pipeline: Count
    dtype: str
    context: Count = 1
    model: str = ""
    kv_heads: Count | None = None
    head_dim: Count | None = None
    mlp: Count | None = None
    experts: Count | None = None
    tied: bool | None = None
    microbatch_size: Count | None = None
    microbatches: Count | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    optimizer_sharded: ZeroStage | None = None
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1"] = "1f1b"
    virtual_stages: Count = 1
    step_seconds: Seconds | None = None
    tokens_per_second_per_device: Positive | None = None
    contradicts: str = ""

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
        """The kind of devices, as machine files name it: without a remark in brackets, and in one spelling.

        >>> row = {"stack": "torchtitan", "devices": 8, "devices_per_host": 8, "layers": 1, "embed": 1, "heads": 1}
        >>> row |= dict.fromkeys(["vocab", "sequence", "batch_size", "data", "fsdp", "tensor", "pipeline"], 1)
        >>> [Published.of({**row, "dtype": "bf16", "device": it}).kind for it in ("H100 96GB (500W)", "TPU7x core")]
        ['h100', 'tpu7x']
        """
        kind = self.device.lower().partition("(")[0].strip().removeprefix("tpu ").removesuffix(" core")
        kind = kind.replace("-", "_").replace(" ", "_")
        return KINDS.get(kind, kind)

    @property
    def block(self) -> str:
        """The kind of the model's blocks.

        Raises:
            Infeasible: there are no formulas for it.
        """
        if (family := self.model.partition("-")[0]) in OTHER_BLOCKS:
            raise Infeasible(f"there are no formulas for the blocks of {family}")
        named = next((block for name, block in BLOCKS.items() if self.model.startswith(name)), None)
        return named or ("llama" if self.kv_heads else "gpt2")

    @property
    def replicas(self) -> int:
        """Parts of the batch."""
        return self.data * self.fsdp

    @property
    def measured_seconds(self) -> float | None:
        """Measured seconds of a step; None if there are none, or if the row contradicts itself."""
        if self.contradicts:
            return None
        if self.step_seconds or not self.tokens_per_second_per_device:
            return self.step_seconds
        return self.batch_size * self.sequence / self.tokens_per_second_per_device / self.devices


COLUMNS = *(field.name for field in msgspec.structs.fields(Published) if field.required), "mlp", "recompute"
"""Columns that a table needs; some cells may be empty."""


@dataclass(frozen=True)
class PublishedRun:
    """A measured run.

    Attributes:
        cost: its step by formulas.
        topology: its devices.
        stack: its software.
        step_seconds: measured; None if the row has none, or contradicts itself.
    """

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
    return PublishedRun(cost, topology_of(published), stack, published.measured_seconds)


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
