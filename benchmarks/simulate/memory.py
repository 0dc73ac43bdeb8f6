"""Memory of a device under a stack: what it keeps of each parameter, activations of its microbatches, and logits."""

import math
from dataclasses import replace

from benchmarks.simulate.stack import MEGATRON, Memory, Stack
from benchmarks.simulate.step import first_stage_elements
from strategies.config import Remat
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES, Weight
from strategies.costs.predict import Cost

USED_BYTES = 2 + 2
"""Of a parameter: the weight and its gradient in two bytes each."""
UPDATED_BYTES = 4 + 4 + 4 + 4
"""Of a parameter that the device updates, in float32: weight, gradient and Adam's two moments. With `USED_BYTES`
that is 20 bytes (Smith et al. 2022, "Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B")."""
REPLICAS = "data", "context", "expert"
"""Axes that may share the update of a weight that none of them splits."""


def held_bytes(cost: Cost, stack: Stack, expert_share: float = 1.0) -> float:
    """Memory that a device needs: by the rules of the stack, or, where it has none, as meshmark's own step would.

    Args:
        cost: the step.
        stack: the software.
        expert_share: part of the layers that have experts.
    """
    if stack == MEGATRON:
        return megatron_bytes(cost.plan)
    return stack_bytes(cost.plan, stack, stack.memory, expert_share) if stack.memory else cost.needed_bytes


def stack_bytes(plan: Plan, stack: Stack, memory: Memory, expert_share: float = 1.0) -> float:
    """Memory of the device that needs the most.

    With stages that is one of the first, which has most microbatches in flight and the embedding, or of the last, which
    has the head. In the backward pass of a microbatch there are, besides, logits or a layer that is computed again.
    """
    share, staged = plan.share, plan.staged
    kept = plan.layers * kept_bytes(plan, stack)
    logits = memory.logit_bytes * share.tokens * plan.padded_vocab / (1 if stack.gathers_logits else plan.tensors)
    again = _kept_with(plan, "none") if plan.train.remat == "full" else 0
    activations = max(in_flight(plan) * kept + again, kept + max(again, logits))
    held = sum(
        weight_bytes(plan, weight, memory) * (expert_share if "expert_mlp" in weight.spec.dims else 1)
        for weight in plan.weights
        if "vocab" not in weight.spec.dims
    )
    tables = [weight_bytes(plan, weight, memory) for weight in plan.weights if "vocab" in weight.spec.dims]
    held += plan.stages * max(tables) if staged else sum(tables)
    return memory.fragmentation * (held + gathered_bytes(plan, stack) + activations)


def kept_bytes(plan: Plan, stack: Stack) -> float:
    """Activations of a layer for a microbatch. Of every second matmul about half as many are kept as of all."""
    kept = plan.block.kept_bytes(plan.share)
    if plan.train.remat != "dots" or stack.selective == "attention":
        return kept
    return (kept + _kept_with(plan, "full")) / 2


def _kept_with(plan: Plan, remat: Remat) -> int:
    """Activations of a layer for a microbatch, with another recomputation."""
    return plan.block.kept_bytes(replace(plan.share, train=replace(plan.train, remat=remat)))


def in_flight(plan: Plan) -> float:
    """Microbatches in flight on the first of p stages: p, and with m chunks (p - 1) / m more."""
    stages, chunks = (plan.schedule.stages, plan.schedule.chunks) if plan.staged else (1, 1)
    return min(plan.train.microbatches, stages + (stages - 1) * (chunks > 1) / chunks)


def weight_bytes(plan: Plan, weight: Weight, memory: Memory) -> float:
    """Bytes of a weight, its gradient and its optimizer, which the devices of its replicas may share."""
    sharded = any(axis.updates for axis in plan.axes)
    parts = math.prod(plan.size(axis) for axis in REPLICAS if axis not in weight.axes) if sharded else 1
    return weight.elements * (memory.used_bytes + memory.updated_bytes / parts)


def gathered_bytes(plan: Plan, stack: Stack) -> float:
    """Weights of two layers, and of tables, that are gathered at a time where they are sharded."""
    if plan.shards == 1:
        return 0
    layer = plan.shards * sum(one.elements for one in plan.weights if one.spec.is_stacked) / plan.layers
    tables = stack.first_tables * plan.padded_vocab * plan.config.embed / plan.size(*plan.vocab_axes)
    return BYTES[plan.train.dtype] * (2 * layer + tables)


def megatron_bytes(plan: Plan) -> float:
    """Memory of a device of the first stage, which has the token table and most microbatches in flight.

    What CUDA, NCCL and the allocator keep comes on top.
    """
    return first_stage_elements(plan) * (USED_BYTES + UPDATED_BYTES / plan.updates) + activation_bytes(plan)


def activation_bytes(plan: Plan) -> float:
    """Activations on the first stage (Korthikanti et al. 2022, equations 1, 2, 4 and 5; the head's in section 4.3).

    Full recomputation keeps the input of each layer, 2 s b h. Besides there is one layer whole, or else the logits.
    """
    tensors, config = plan.tensors, plan.config
    stream = plan.share.tokens * config.embed
    scores = 5 * config.heads * config.sequence / config.embed
    spread = tensors if plan.sequence_parallel else 1
    outside, inside = stream * 10 / spread, stream * (24 + scores) / tensors
    kept = {"none": outside + inside, "dots": outside + stream * 24 / tensors, "full": 2 * stream / spread}
    again = outside + inside if plan.train.remat == "full" else 0
    logits = 0 if plan.staged else 4 * plan.share.tokens * plan.padded_vocab / tensors
    return in_flight(plan) * plan.layers * kept[plan.train.remat] + max(again, logits)
