"""Meshes of published rows, and the axes of steps that no strategy here has.

These are optimizers that are sharded beside other axes, rings of a context axis in a pipeline, and experts that are
split over the devices of other axes (Liu et al. 2025, "MoE Parallel Folding").
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

from benchmarks.simulate.published_row import AXES, Published
from strategies import context, expert, pipeline, tensor, zero
from strategies.core.axis import Axis
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, traffic
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.expert_rows import buffer_rows
from strategies.three_d import THREE_D

PARTS = "core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp"
"""Parts of a layer that Megatron-Core recomputes on request, as its option recompute_modules names them. The last
is the MLP of the few dense layers of a mixture, and counts for nothing."""


@dataclass(frozen=True, kw_only=True)
class Further:
    """What published models have and meshmark's own lack.

    Attributes:
        score_features: with multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1), features of all
            heads in products of queries and keys, and of scores and values, on average. Its heads have as many
            features as make its projections as large as those of keys, values and queries together. Otherwise 0.
        predicted_tokens: of each position. Each has a loss, and each but the first a layer (DeepSeek-AI 2024,
            "DeepSeek-V3", section 2.2).
        short_ends: 2: where stages do not divide the layers, the first and the last have fewer; 1: the last alone.
        dense_share: part of the layers that have dense attention, where the others have a window. Other stacks split
            layers that take turns over stages, so each layer is predicted as their mean.
        latent: rows and columns of the matrices of latent attention that make heads.
        expert_share: part of the layers that have experts.
        recomputed: parts of a layer that are computed again before its backward pass (`PARTS`).
    """

    score_features: int = 0
    predicted_tokens: int = 1
    short_ends: int = 2
    dense_share: float = 0.0
    latent: tuple[tuple[int, int], ...] = ()
    expert_share: float = 1.0
    recomputed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishedConfig(GPTConfig, Further):
    """A published model."""


def further_of(config: GPTConfig) -> Further:
    """What a model has that meshmark's own lack; the defaults for one of meshmark's own."""
    return config if isinstance(config, PublishedConfig) else Further()


def experts_have_biases(plan: Plan) -> bool:
    """Whether matmuls of experts have biases."""
    return any(weight.spec.dims[-2:] == ("experts", "embed") for weight in plan.weights)


def latent_heads(row: Published) -> dict[str, Any]:
    """Sizes of heads with latent attention, as DeepSeek-V2, -V3 and Kimi K2 have them, for `PublishedConfig`.

    >>> row = Published("", "", 8, 8, 61, 7168, 128, 129280, 4096, 8, 8, 1, 1, 1, "bf16")
    >>> latent_heads(row)
    {'head_size': 96, 'key_heads': 1, 'score_features': 20480, 'latent': ((1536, 24576), (512, 32768))}
    """
    queries, keys, plain, turned, heads, embed = 1536, 512, 128, 64, row.heads, row.embed
    into = embed * queries + queries * heads * (plain + turned) + embed * (keys + turned) + keys * heads * 2 * plain
    features = (into + heads * plain * embed) / (2 * embed * (heads + 1))
    score = heads * (2 * plain + turned) // 2
    size = 16 * round(features / 16)  # of which replicas can have equal parts
    latent = (queries, heads * (plain + turned)), (keys, heads * 2 * plain)
    return {"head_size": size, "key_heads": row.tensor, "score_features": score, "latent": latent}


def axes_of(row: Published) -> tuple[Axis, ...]:
    """The axes of the step of a row.

    Megatron-LM's distributed optimizer (megatron/optimizer/distrib_optimizer.py) splits a flat buffer of all weights:
    whatever tensor splits is not split again. A context axis sends keys and values around a ring, also in a pipeline.
    """
    return _axes(row.optimizer_sharded, row.expert_share if row.experts else None, _folded(row))


@cache
def _axes(sharded: str | None, expert_share: Fraction | None, folded: bool) -> tuple[Axis, ...]:
    """`axes_of`: the same axes for rows that say the same, so that what follows from axes is known."""
    changes = {"context": replace(context.AXIS, resolve=_ring)}
    changes["pipeline"] = replace(pipeline.AXIS, traffic=(_sends, pipeline.all_reduces, tensor.vocabulary))
    if sharded in ("zero1", "zero2"):
        shards = zero.AXIS2 if sharded == "zero2" else zero.AXIS1
        changes["data"] = replace(shards, may_split_dim_twice=False)
    if expert_share is not None:
        changes["expert"] = replace(expert.AXIS, traffic=(_exchanged(expert_share, folded),))
        if folded:
            changes["tensor"] = replace(tensor.AXIS, traffic=(_of_attention, tensor.vocabulary))
    return tuple(changes.get(axis.name, axis) for axis in THREE_D.axes)


def sizes_of(row: Published) -> dict[str, int]:
    """Sizes of the mesh axes. What shards parameters is called fsdp here, and what shards less is called data.

    Raises:
        Infeasible: their product is not the number of devices.
    """
    sizes: dict[str, int] = {axis: getattr(row, axis) for axis in AXES}
    if (size := row.own_experts * math.prod(sizes.values())) != row.devices:
        raise Infeasible(f"{sizes} are {size} devices, and the row has {row.devices}")
    if row.optimizer_sharded != "zero3":
        sizes |= {"data": row.data * row.fsdp, "fsdp": 1}
    elif row.fsdp == 1:
        sizes |= {"data": 1, "fsdp": row.data}
    return expert_sizes(row, sizes) if row.experts else sizes


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


def expert_sizes(row: Published, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of the mesh axes with those devices along an axis `expert` that a row counts along others.

    Where the tensor axis does not split single experts it splits their number. Here it splits their hidden features
    instead, which is as much work and memory. The other devices are of the replicas.
    """
    size = row.expert or 1
    if row.own_experts > 1:
        return _ordered({**sizes, "expert": size})
    size = size // row.tensor if _folded(row) else size
    of_data = math.gcd(size, sizes["data"])
    of_fsdp = math.gcd(size // of_data, sizes["fsdp"])
    replicas = {"data": sizes["data"] // of_data, "fsdp": sizes["fsdp"] // of_fsdp}
    return _ordered({**sizes, **replicas, "expert": of_data * of_fsdp})


def _ordered(sizes: dict[str, int]) -> dict[str, int]:
    return {axis.name: sizes[axis.name] for axis in THREE_D.axes}


def expert_group(row: Published) -> int:
    """Tokens of which each expert takes an equal part: those of a sequence on a device, or half of them in a ring."""
    return row.sequence // (2 * row.context if row.context > 1 else 1)


def recomputed_parts(row: Published) -> tuple[str, ...]:
    """The parts of a layer that a row recomputes; empty if it names none.

    Raises:
        Infeasible: a part is not known, or it is the MLP of a dense model.
    """
    said, known = row.recompute or "", PARTS if row.experts else PARTS[:-1]
    named = said.split(" + ")
    if len(named) == 1 and said not in PARTS:
        return ()
    if unknown := [part for part in named if part not in known]:
        raise Infeasible(f"recompute={said} names {', '.join(unknown)}; parts that are known are {', '.join(known)}")
    return tuple(named)


def _folded(row: Published) -> bool:
    """Whether experts are whole, and the tensor axis splits their number."""
    whole = row.own_experts == row.expert_tensor == 1
    return whole and row.tensor > 1 and bool(row.expert) and (row.expert or 1) % row.tensor == 0


def _exchanged(share: Fraction, folded: bool) -> Callable[[Plan], Iterator[Traffic]]:
    """Dispatch and combine of tokens in the layers that have experts, over all devices that split these."""

    def exchanged(plan: Plan) -> Iterator[Traffic]:
        rows = buffer_rows(plan.config, plan.tokens) // (plan.tensors if folded else 1)
        elements = int(share * plan.layers * rows * plan.config.embed)
        axes = ("expert", "tensor") if folded else ("expert",)
        for what, times in (("dispatch", expert.dispatches(plan)), ("combine", expert.combines(plan))):
            yield from traffic(plan, what, "all_to_all", axes, times * elements, dtype=plan.train.dtype)

    return exchanged


def _sends(plan: Plan) -> Iterator[Traffic]:
    """What a stage between others sends, each microbatch when it is ready: for each chunk forward and backward."""
    sent = 2 * plan.schedule.chunks * plan.own_residual
    yield from traffic(plan, "stages", "permute", plan.axes_of("layers"), sent, dtype=plan.train.dtype)


def _of_attention(plan: Plan) -> Iterator[Traffic]:
    """What the tensor axis sends in layers where attention alone gathers tokens: half as much for its two branches."""
    for term in tensor.layers(plan):
        halved = replace(term, operand_bytes=term.operand_bytes // 2, sent_bytes=Fraction(term.sent_bytes) / 2)
        yield halved if term.what == "layers" else term


def _ring(plan: Plan) -> dict[str, str]:
    return {**resolve_reduce(plan), "context_attention": "ring"}
