"""Rows of measured training runs (published_row.py), as steps that the formulas know."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from benchmarks.devices.chips import CHIPS, SWITCHED
from benchmarks.devices.topology import CLOUD_NAMES, Topology, balanced_factors
from benchmarks.simulate.folding import (
    PublishedConfig,
    axes_of,
    expert_group,
    latent_heads,
    recomputed_parts,
    sizes_of,
    strategy_of,
)
from benchmarks.simulate.published_row import Published, TableRow
from benchmarks.simulate.stack import PRECISIONS, Precision, Stack
from benchmarks.simulate.stacks import MEGATRON, STACK_OF, VARIANTS
from strategies import STRATEGIES
from strategies.backends.topologies import DEVICES_PER_CHIP
from strategies.config import Dtype, Remat, TrainConfig
from strategies.core.plan import applicable
from strategies.costs.predict import Cost, predict, predict_axes
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.presets import PRESETS

REMAT: Mapping[str, Remat] = {
    **{"full": "full", "selective": "dots", "none": "none"},
    # torchtitan keeps the outputs of attention and of every second matmul.
    **dict.fromkeys(("selective (op)", "selective (per op)"), "dots"),
    # MaxText keeps the inputs of layers in the memory of the host.
    **dict.fromkeys(("decoder_layer_input offload (custom)", "offload", "qkv_proj_offloaded"), "full"),
    **dict.fromkeys(("qkv+context+input kept (custom)", "custom"), "full"),
}
"""What published tables say of recomputation -> what a step recomputes."""
DTYPES: Mapping[str, Dtype] = {"float16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}
"""Spellings of dtypes of two bytes."""
GPT_OSS = PRESETS["gpt-oss-20b"]
NARROW = {"fp8-mx": "mxfp8", "mxfp8": "mxfp8", "fp8": "fp8", "float8": "fp8", "nvfp4": "nvfp4"}
"""How what tables say of narrower dtypes begins -> a name in `PRECISIONS`; the first that fits. The rest of such a step
is in bfloat16."""


@dataclass(frozen=True)
class PublishedRun:
    """A measured run.

    Attributes:
        kind: of its devices, as machine files name it.
        cost: its step by formulas.
        topology: its devices.
        stack: its software.
        step_seconds: measured; None if the row has none, or contradicts itself.
        precision: of the layers' matmuls, if they are narrower than two bytes.
        says_recomputation: whether the row says what is recomputed.
        offloads: whether inputs of layers are in the memory of the host.
    """

    kind: str
    cost: Cost
    topology: Topology
    stack: Stack
    step_seconds: float | None
    precision: Precision | None = None
    says_recomputation: bool = True
    offloads: bool = False


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
    return run_under(published, stack_of(published))


def run_under(published: Published, stack: Stack) -> PublishedRun:
    """The run of a row under a stack.

    Raises:
        Infeasible: the formulas do not know such a step.
    """
    said = published.recompute or ""
    if stack.pads_experts and published.experts and not published.capacity_factor:
        problem = f"{stack.name} pads all experts to the busiest, and the row does not say how busy that is"
        raise Infeasible(f"{problem}; set capacity_factor to its rows as a multiple of an equal share")
    published = completed(published, stack)
    sizes = sizes_of(published)
    cost = cost_of(published, sizes, config_of(published), training_of(published, stack))
    require_batch(published)
    seconds, precision = published.measured_seconds, precision_of(published, stack)
    memory = {"says_recomputation": bool(said), "offloads": "offload" in said}
    return PublishedRun(published.kind, cost, topology_of(published), stack, seconds, precision, **memory)


def precision_of(row: Published, stack: Stack) -> Precision | None:
    """The precision of a row's matmuls; None if it is a dtype of two bytes.

    torchao has scales for tensors, or for rows where the dtype has a word that begins with "row".
    """
    name = next((name for begins, name in NARROW.items() if row.dtype.startswith(begins)), None)
    if name == "fp8" and stack.uses_torchao:
        name = "float8 rowwise" if re.search(r"[\W_]row", row.dtype) else "float8"
    return PRECISIONS[name] if name else None


def stack_of(row: Published) -> Stack:
    """The stack of a row.

    Raises:
        Infeasible: it or its variant is not known.
    """
    name = re.sub(r" [0-9.]+$", "", row.stack)
    stacks = STACK_OF.get(name, ())
    if not stacks:
        raise Infeasible(f"the kernels of stack {name!r} are not known; known are {', '.join(STACK_OF)}")
    if row.variant:
        if row.variant not in (variants := VARIANTS.get(name, {})):
            known = ", ".join(variants) or "none"
            raise Infeasible(f"variant {row.variant!r} of {name} is not known; known are {known}")
        return variants[row.variant]
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
    recipe, microbatches, chunks = stack.recipe, row.microbatches, row.virtual_stages
    # Megatron-Core may count embedding and loss as layers.
    while row.pipeline * chunks > row.layers and chunks % 2 == 0:
        chunks //= 2
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
        schedule="interleaved" if row.pipeline > 1 and chunks > 1 else row.schedule,
        virtual_stages=chunks,
    )


def config_of(row: Published) -> PublishedConfig:
    """The model of a row.

    Raises:
        Infeasible: there are no formulas for its blocks, or its sizes do not fit together.
    """
    if not (row.expert_mlp if row.experts else row.mlp):
        raise Infeasible("the row lacks " + ("expert_mlp" if row.experts else "mlp"))
    mixture: dict[str, Any] = {}
    if row.experts and row.expert_mlp:
        mixture = {
            "experts": row.experts,
            "experts_per_token": row.experts_per_token or 1,
            "expert_mlp": row.expert_mlp,
            "shared_mlp": (row.shared_experts or 0) * row.expert_mlp or None,
            "capacity_factor": row.capacity_factor or 1.0,
            "expert_group": expert_group(row),
        }
    heads = latent_heads(row) if row.is_latent else {"head_size": row.head_dim, "key_heads": row.kv_heads}
    return PublishedConfig(
        row.layers + row.mtp_layers,
        row.embed,
        row.heads,
        row.vocab,
        row.sequence,
        row.mlp,
        tied=row.block == "gpt2" if row.tied is None else row.tied,
        block=row.block,
        **heads,
        **mixture,
        **windows_of(row),
        predicted_tokens=1 + row.mtp_layers,
        short_ends=1 if row.is_latent else 2,
        expert_share=float(row.expert_share),
        recomputed=recomputed_parts(row),
    )


def windows_of(row: Published) -> dict[str, Any]:
    """The window of some layers, for `PublishedConfig`. All models of a family have it as its preset; others have none.

    Raises:
        Infeasible: devices split a sequence, and layers that need different parts of it take turns.
    """
    if row.block != GPT_OSS.block:
        return {}
    if row.context > 1:
        problem = "there are no formulas for a ring where some layers have a window, and some have none"
        raise Infeasible(f"context={row.context}: {problem}")
    return {"attention_window": GPT_OSS.attention_window, "dense_share": 1 / (GPT_OSS.full_attention_every or 1)}


def cost_of(row: Published, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig) -> Cost:
    """The step of a row by formulas.

    Weights whose optimizer is sharded over data are gathered in the compute dtype, and updated in float32.

    Raises:
        Infeasible: the formulas do not know such a step.
    """
    mesh = MeshSpec(tuple((axis, size) for axis, size in sizes.items() if size > 1) or (("data", 1),))
    strategy, sharded = strategy_of(row, sizes), row.optimizer_sharded
    shards = mesh.sizes.get("data", 1) > 1 and sharded in ("zero1", "zero2")
    train = replace(train, master="float32") if shards else train
    plain = row.context == row.pipeline == 1 and not row.experts
    if plain and (strategy == sharded or not shards):
        return predict(strategy, config, mesh, STRATEGIES[strategy].applicable(train), "cuda")
    return predict_axes(axes_of(row), config, mesh, applicable(axes_of(row), train), "cuda")


def topology_of(row: Published) -> Topology:
    """The devices of a row. The last host may not be full. A torus is as near to a square or a cube as it can be.

    Raises:
        Infeasible: such devices are not known.
    """
    kind = CLOUD_NAMES.get(row.kind, row.kind.partition("_96gb")[0])
    host = row.devices_per_host
    if kind in SWITCHED:  # as many GPUs of each rack as make equal parts
        host = next(size for size in range(min(row.devices, SWITCHED[kind]), 0, -1) if row.devices % size == 0)
    shape = math.ceil(row.devices / host), min(row.devices, host)
    if kind in CHIPS and CHIPS[kind].torus_dims:
        chips = row.devices // DEVICES_PER_CHIP[kind]
        shape = balanced_factors(chips, CHIPS[kind].torus_dims)
    try:
        return Topology(kind, shape)
    except ValueError as error:
        raise Infeasible(str(error)) from error


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


def training_of(row: Published, stack: Stack) -> TrainConfig:
    """The training options of a row. Its stack decides what overlaps.

    Raises:
        Infeasible: the dtype or the recomputation is not known.
    """
    dtype = "bfloat16" if precision_of(row, stack) else row.dtype
    row = msgspec.structs.replace(row, recompute="none") if recomputed_parts(row) else row
    for name, value, known in (("dtype", dtype, DTYPES), ("recompute", row.recompute, REMAT)):
        if value not in known:
            raise Infeasible(f"{name} is {value!r}; what is predicted is {', '.join(known)}")
    return TrainConfig(
        row.batch_size,
        row.microbatches or 1,
        dtype=DTYPES[dtype],
        remat=REMAT[row.recompute or "none"],
        schedule=row.schedule,
        chunks=max(2, row.virtual_stages),
        sequence_parallel=bool(row.sequence_parallel),
        reduce_dtype=stack.reduce_dtype,
        reduce="step",
        prefetch="off",
        halves="off",
        dispatch="all_to_all",
    )
