"""Rows of measured training runs (published_row.py), as steps that the formulas know."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from benchmarks.devices.chips import CHIPS, SWITCHED
from benchmarks.devices.topology import Topology, balanced_factors
from benchmarks.simulate.published_row import Published, TableRow, ZeroStage, cost_of
from benchmarks.simulate.stack import PRECISIONS, Precision
from strategies.backends.topologies import DEVICES_PER_CHIP
from strategies.config import Dtype, ReduceDtype, Remat, TrainConfig
from strategies.costs.predict import Cost
from strategies.gpt_config import GPTConfig
from strategies.gpt_requirements import OF_LATENTS
from strategies.infeasible import Infeasible
from strategies.presets import PRESETS

REMAT: Mapping[str, Remat] = {"full": "full", "selective": "dots", "none": "none"}
"""What published tables say of recomputation -> what a step recomputes."""
DTYPES: Mapping[str, Dtype] = {"float16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}
NARROW = {"fp8-mx": "mxfp8", "mxfp8": "mxfp8", "fp8": "fp8", "float8": "fp8", "nvfp4": "nvfp4"}
"""How names of narrower dtypes begin -> a name in `PRECISIONS`; the first that fits. The rest is in bfloat16."""


class Program(NamedTuple):
    """A training program of published tables: its stack as machine files name it, what it does where a row does not
    say, and whether all experts are padded to the number of rows of the busiest.
    """

    stack: str
    optimizer_sharded: ZeroStage = "none"
    sequence_parallel: bool = False
    recompute: str = "none"
    reduce_dtype: ReduceDtype = "bfloat16"
    pads_experts: bool = False


PROGRAMS: Mapping[str, Program] = {
    "Megatron-LM": Program("Megatron-LM"),
    "Megatron-LM of today": Program("Megatron-Core", "zero1", sequence_parallel=True, reduce_dtype="float32"),
    "Megatron-DeepSpeed": Program("Megatron-LM"),
    "Megatron-Bridge": Program("Megatron-Bridge", "zero1", sequence_parallel=True),
    "NeMo": Program("Megatron-Bridge", "zero1", sequence_parallel=True),
    "PyTorch FSDP": Program("PyTorch FSDP"),
    "torchtitan": Program("PyTorch FSDP", "zero3", True, "selective", "float32"),
    "KempnerForge": Program("PyTorch FSDP", "zero3", True, "selective", "float32", pads_experts=True),
    "MaxText": Program("meshmark", "zero3", recompute="full"),  # XLA compiles both
}
"""Programs as tables name them, without a version. Rows of Megatron-LM with other blocks than GPT-2's are of today."""


@dataclass(frozen=True)
class PublishedRun:
    """A measured run: its kind of devices and its stack, as machine files name them, and its step by formulas.

    Its seconds are None if the row has none, or contradicts itself.
    """

    kind: str
    cost: Cost
    topology: Topology
    stack: str
    step_seconds: float | None
    precision: Precision | None = None
    losses: int = 1
    source: str = ""


def run_of(row: TableRow) -> PublishedRun:
    """The run of a row."""
    published = Published.of(row)
    program = program_of(published)
    if program.pads_experts and published.experts and not published.capacity_factor:
        problem = "its experts are padded to the busiest, and the row does not say how busy"
        raise Infeasible(f"{problem}: set capacity_factor")
    published = completed(published, program)
    topology = topology_of(published)
    cost = cost_of(published, config_of(published), training_of(published, program), topology)
    require_batch(published)
    facts = published.measured_seconds, precision_of(published), 1 + published.mtp_layers, row.get("source", "")
    return PublishedRun(published.kind, cost, topology, program.stack, *facts)


def precision_of(row: Published) -> Precision | None:
    """The precision of a row's matmuls; None if it is a dtype of two bytes."""
    return next((PRECISIONS[name] for begins, name in NARROW.items() if row.dtype.startswith(begins)), None)


def program_of(row: Published) -> Program:
    """The program of a row."""
    name = re.sub(r" [0-9.]+$", "", row.stack)
    if name == "Megatron-LM" and row.block != "gpt2":
        name += " of today"
    if name not in PROGRAMS:
        known = ", ".join(name for name in PROGRAMS if not name.endswith("of today"))
        raise Infeasible(f"the kernels of stack {name!r} are not known; known are {known}")
    return PROGRAMS[name]


def completed(row: Published, program: Program) -> Published:
    """The row with what its program does where the row does not say, and with the number of its microbatches."""
    microbatches, chunks = row.microbatches, row.virtual_stages
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
        recompute=row.recompute or program.recompute,
        sequence_parallel=program.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel,
        optimizer_sharded=row.optimizer_sharded or ("zero3" if row.fsdp > 1 else program.optimizer_sharded),
        schedule="interleaved" if row.pipeline > 1 and chunks > 1 else row.schedule,
        virtual_stages=chunks,
    )


def config_of(row: Published) -> GPTConfig:
    """The model of a row."""
    if not (row.expert_mlp if row.experts else row.mlp):
        raise Infeasible("the row lacks " + ("expert_mlp" if row.experts else "mlp"))
    more: dict[str, Any] = {}
    if row.experts and row.expert_mlp:
        more = {"experts": row.experts, "experts_per_token": row.experts_per_token or 1, "expert_mlp": row.expert_mlp}
        more |= {"shared_mlp": (row.shared_experts or 0) * row.expert_mlp or None}
        # Each expert takes an equal part of the tokens of a sequence on a device, or of half of them in a ring.
        group = row.sequence // (2 * row.context if row.context > 1 else 1)
        more |= {"capacity_factor": row.capacity_factor or 1.0, "expert_group": group}
    if row.block == "gpt_oss":
        preset = PRESETS["gpt-oss-20b"]
        more |= {name: getattr(preset, name) for name in ("attention_window", "full_attention_every")}
    if row.is_latent:
        preset = PRESETS.get(row.model, PRESETS["deepseek-v3"])
        more |= {name: getattr(preset, name) for name in ("head_size", "latent_rank", *OF_LATENTS)}
    return GPTConfig(
        row.layers + row.mtp_layers,
        row.embed,
        row.heads,
        row.vocab,
        row.sequence,
        row.mlp,
        tied=row.block == "gpt2" if row.tied is None else row.tied,
        block=row.block,
        **{"head_size": row.head_dim, "key_heads": row.kv_heads, **more},
    )


def topology_of(row: Published) -> Topology:
    """The devices of a row. The last host may not be full. A torus is as near to a square or a cube as it can be."""
    kind, host = row.kind, row.devices_per_host
    if kind in SWITCHED:  # as many GPUs of each rack as make equal parts
        host = next(size for size in range(min(row.devices, SWITCHED[kind]), 0, -1) if row.devices % size == 0)
    shape = math.ceil(row.devices / host), min(row.devices, host)
    if kind in CHIPS and CHIPS[kind].torus_dims:
        shape = balanced_factors(row.devices // DEVICES_PER_CHIP[kind], CHIPS[kind].torus_dims)
    return Topology(kind, shape)


def require_batch(row: Published) -> None:
    """Refuse a row whose batch is not its microbatches on all replicas: a column means something else there."""
    microbatches, replicas = row.microbatches or 1, row.replicas
    size = row.microbatch_size or max(1, row.batch_size // (microbatches * replicas))
    if (batch := size * microbatches * replicas) != row.batch_size:
        problem = f"{microbatches} microbatches of {size} on {replicas} replicas are {batch} sequences"
        raise Infeasible(f"{problem}, and batch_size is {row.batch_size}")


def training_of(row: Published, program: Program) -> TrainConfig:
    """The training options of a row. The stack of its machine decides what overlaps."""
    dtype = "bfloat16" if precision_of(row) else row.dtype
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
        reduce_dtype=program.reduce_dtype,
        reduce="step",
        prefetch="off",
        halves="off",
        dispatch="all_to_all",
    )
