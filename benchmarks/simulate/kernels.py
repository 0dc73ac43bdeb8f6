"""The kernels of a layer, of the head and of the optimizer on one device, and their seconds.

Legend of dims: N tokens of a microbatch on the device, D embed, F hidden features of the MLP, V vocabulary; the last
three as the tensor axis splits them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from benchmarks.simulate.folding import experts_have_biases, further_of
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.memory_traffic import cast_bytes, stacks_kept, table_bytes, traffic_bytes
from benchmarks.simulate.projections import projections
from benchmarks.simulate.stack import NONE, Precision, Stack
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.model.expert_rows import rows_of
from strategies.model.share import Share

Kind = Literal["matmul", "attention", "memory"]


TILES = ((256, 128, 1.0), (128, 128, 0.9), (128, 64, 0.75), (64, 64, 0.55))
"""Tiles of the output that a core of a GPU computes at a time, and the rate with each, relative to the largest."""


NORM_BYTES = 2 * 4
"""For each element of the residual stream, of the two norms of a layer: read and written in two bytes."""


@cache
def tiles_filled(m: float, n: float, batch: float, cores: int) -> float:
    """The share of a GPU's peak that a matmul's tiles allow, with the best tile.

    The cores compute tiles in waves. The last wave has fewer tiles than cores, and tiles at the edge are not full
    (NVIDIA, "Matrix Multiplication Background User's Guide", sections 3.1 and 3.2).

    >>> tiles_filled(4096, 4096, 1, 108) > tiles_filled(2048, 2048, 1, 108)
    True
    """
    best = 0.0
    for rows, columns, rate in TILES:
        for height, width in ((rows, columns), (columns, rows)):
            tiles = math.ceil(m / height) * math.ceil(n / width) * batch
            waves = math.ceil(tiles / cores)
            best = max(best, rate * m * n * batch / (waves * cores * height * width))
    return best


@dataclass(frozen=True)
class Kernel:
    """One kernel, or several that are alike.

    Attributes:
        kind: a matmul, fused attention, or a pass over memory.
        flops: of its matmuls.
        moved_bytes: that it reads and writes in memory.
        dims: m, n, k of a matmul [m,k] x [k,n], and how many there are in the batch.
        itemsize: bytes of an element of its operands; 4 for float32.
        copy_seconds: of copies by index, which no bandwidth shortens.
    """

    kind: Kind
    flops: float
    moved_bytes: float
    dims: tuple[float, float, float, float] = (0, 0, 0, 0)
    itemsize: float = 2
    copy_seconds: float = 0

    def seconds(self, machine: Machine) -> float:
        """Seconds on a machine: of its FLOPs or of its bytes, whichever take longer."""
        constants = machine.constants
        streaming = self.moved_bytes / (machine.chip.memory_bytes_per_second * constants.memory_efficiency)
        if self.kind == "memory":
            return streaming + self.copy_seconds
        best = machine.best_rate(self.itemsize)
        if self.kind == "attention":
            return max(self.flops / best / constants.attention_efficiency, streaming)
        m, n, k, batch = self.dims
        rate = best * constants.matmul_efficiency
        filled = tiles_filled(m, n, batch, machine.cores) if machine.cores else 1.0
        at_ends = constants.matmul_dim * max(1.0, 2 / self.itemsize)  # seconds that a higher rate does not shorten
        return max(self.flops / rate / filled * (1 + at_ends / k), streaming)


@dataclass(frozen=True)
class Layer:
    """The kernels of a layer for one microbatch.

    Attributes:
        forward: of the forward pass.
        inputs: of the backward pass, without `weights`. They begin with what is recomputed.
        weights: of the gradients of the weights of matmuls.
    """

    forward: tuple[Kernel, ...]
    inputs: tuple[Kernel, ...]
    weights: tuple[Kernel, ...]

    @property
    def backward(self) -> tuple[Kernel, ...]:
        """The kernels of the whole backward pass."""
        return *self.inputs, *self.weights


def matmul(m: float, n: float, k: float, itemsize: float, batch: float = 1) -> Kernel:
    """A batch of matmuls [m,k] x [k,n]. Results have two bytes at least."""
    moved = batch * (itemsize * (m * k + k * n) + max(2, itemsize) * m * n)
    return Kernel("matmul", 2 * batch * m * n * k, moved, (m, n, k, batch), itemsize)


def gradients_of(m: float, n: float, k: float, itemsize: float, batch: float = 1) -> Iterator[Kernel]:
    """The two matmuls of the gradients of `matmul`: of its first operand, and of its second."""
    yield matmul(m, k, n, itemsize, batch)
    yield matmul(k, n, m, itemsize, batch)


def layer(plan: Plan, stack: Stack, precision: Precision | None = None) -> Layer:
    """The kernels of a layer on one device, for one microbatch.

    Args:
        plan: the step.
        stack: the software.
        precision: of the matmuls with weights, if it is not the dtype of the step. Their operands are cast to it.
    """
    share, config, costs = plan.share, plan.config, stack.kernels
    fused = bool(costs.fused_experts and config.experts)
    itemsize = precision.itemsize if precision else BYTES[plan.train.dtype]
    scale = BYTES[plan.train.dtype] / 2  # stacks state the bytes of two-byte dtypes
    branches = plan.block.branches()
    multiplied = [*projections(plan)]
    forward = [matmul(each.m, each.n, each.k, itemsize, each.batch) for each in multiplied]
    gradients = (gradients_of(each.m, each.n, each.k, itemsize, each.batch) for each in multiplied)
    backward, weights = map(list, zip(*gradients, strict=True))
    attentions = [attention(plan, stack, each) for each in plan.block.attention_shares(share)]
    ahead, back = ([kernel for kernels in way for kernel in kernels] for way in zip(*attentions, strict=True))
    forward += ahead
    backward += back
    hidden = sum(branch.activated_elements(share) for branch in branches) * scale
    residual = share.residual_tokens * config.embed * scale * config.layers_in_block
    bytes_of = zip(costs.residual_bytes, costs.mlp_bytes, strict=True)
    moved = [out * residual + (0 if fused else inside * hidden) for out, inside in bytes_of]
    rows = plan.block.mixtures() * rows_of(share) / share.tensors if config.experts else 0
    biases = experts_have_biases(plan)
    heads = share.tokens * (share.head_features + share.key_features) * scale * config.layers_in_block
    casts = cast_bytes(plan, precision, fused=fused) if precision else NONE
    for way in (0, 1):
        moved[way] += (costs.head_bytes[way] + (config.block == "qwen3") * costs.head_norm_bytes[way]) * heads
        of_row = costs.row_bytes[way] + biases * costs.bias_bytes[way]
        moved[way] += of_row * rows * config.embed * scale + casts[way]
    # A row is sorted by its expert, and back. Each of the three matmuls of an expert takes its bias for each row.
    copy_seconds = (2 + 3 * biases) * rows * costs.row_seconds
    forward.append(Kernel("memory", 0, moved[0], copy_seconds=copy_seconds))
    backward.append(Kernel("memory", 0, moved[1], copy_seconds=copy_seconds))
    end = len(multiplied)
    some = ahead if costs.score_bytes else forward[-1:]
    if stack.selective == "every second matmul":
        some = [*forward[1:end:2], forward[-1]]
    last = end - branches[-1].last_matmuls(config)
    full = forward if stack.repeats == "all" else forward[:last] + forward[end:]
    parts = {
        "core_attn": ahead,
        "layernorm": [Kernel("memory", 0, NORM_BYTES * residual)],
        "moe_act": [Kernel("memory", 0, costs.mlp_bytes.forward * hidden)],
        "mla_up_proj": up_projections(plan, itemsize),
        "mlp": [],
    }
    again = [kernel for part in further_of(config).recomputed for kernel in parts[part]]
    again += {"full": full, "dots": some, "none": []}[plan.train.remat]
    # Recomputation does not repeat these of the forward pass: `traffic_bytes` counts those of each pass.
    out, into = ([Kernel("memory", 0, moved)] * (moved > 0) for moved in traffic_bytes(plan, stack, precision))
    return Layer((*out, *forward), (*again, *into, *backward), tuple(weights))


def up_projections(plan: Plan, itemsize: float) -> list[Kernel]:
    """The matmuls of latent attention from compressed queries, and from compressed keys and values, to heads."""
    sizes, tokens, tensors = further_of(plan.config).latent, plan.share.tokens, plan.share.tensors
    return [matmul(tokens, columns / tensors, rows, itemsize) for rows, columns in sizes]


def first_weight_gradients(plan: Plan, precision: Precision | None = None) -> Iterator[Kernel]:
    """The matmuls of the gradient of each branch's first weight. Gradients of its inputs can be reduced meanwhile."""
    itemsize = precision.itemsize if precision else BYTES[plan.train.dtype]
    for branch in plan.block.branches():
        first = next(projections(plan, branch))
        yield matmul(first.k, first.n, plan.share.tokens, itemsize)


def attention(plan: Plan, stack: Stack, share: Share) -> tuple[list[Kernel], list[Kernel]]:
    """The kernels of an attention of a layer, forward and backward; `share` is what the device computes of it.

    Where published layers with and without a window take turns, there are a part of the kernels of each.
    """
    config, itemsize = plan.config, BYTES[plan.train.dtype]
    if stack.kernels.score_bytes is None:
        dense = further_of(config).dense_share
        turns = [(share, 1 - dense), *([(replace(share, dense=True), dense)] if dense else [])]
        forward, backward = zip(*(fused_attention(plan, stack, *turn) for turn in turns), strict=True)
        return [*forward], [*backward]
    keys, head = share.computed_keys, config.head_dim
    queries, batch = config.sequence / share.contexts, score_matrices(plan)
    head = further_of(config).score_features / config.heads or head
    moved = stack.kernels.score_bytes if softmax_is_fused(plan, stack) else stack.kernels.unfused_bytes
    scores, values = (queries, keys, head), (queries, head, keys)
    forward = [matmul(*scores, itemsize, batch), matmul(*values, itemsize, batch)]
    backward = [kernel for dims in (scores, values) for kernel in gradients_of(*dims, itemsize, batch)]
    area = batch * queries * keys * itemsize / 2
    forward.append(Kernel("memory", 0, moved.forward * area))
    backward.append(Kernel("memory", 0, moved.backward * area))
    return forward, backward


def fused_attention(plan: Plan, stack: Stack, share: Share, part: float) -> tuple[Kernel, Kernel]:
    """The fused kernels of an attention, forward and backward, or so large a part of them.

    They skip what causality masks, half of the scores, or what a window leaves out, and compute the scores again in the
    backward pass: 5 matmuls for the 2 of the forward pass (Dao et al. 2022, "FlashAttention", section 3.1).
    """
    config, itemsize, multiple = plan.config, BYTES[plan.train.dtype], stack.kernels.head_multiple
    features = further_of(config).score_features / share.tensors or share.head_features
    features *= math.ceil(config.head_dim / multiple) * multiple / config.head_dim
    # A window's keys are those of whole blocks. Of dense attention `Share` counts those that causality masks, too.
    attended = min(share.computed_keys, config.sequence / 2)
    flops = part * 2 * 2 * share.tokens * attended * features
    moved = part * itemsize * share.tokens * share.attended_features
    return (
        Kernel("attention", flops, moved, itemsize=itemsize),
        Kernel("attention", 2.5 * flops, 2 * moved, itemsize=itemsize),
    )


def score_matrices(plan: Plan) -> float:
    """Sequences x heads of a microbatch on a device."""
    share, config = plan.share, plan.config
    return share.tokens * share.contexts / config.sequence * share.head_features / config.head_dim


def softmax_is_fused(plan: Plan, stack: Stack) -> bool:
    """Whether the fused softmax of a stack without fused attention takes the scores of a device."""
    return score_matrices(plan) % stack.kernels.softmax_multiple == 0


def kernels_of(plan: Plan, stack: Stack, over: Axes, *, back: bool) -> float:
    """How many kernels a layer has, forward or backward; `over` are the axes that split its experts."""
    costs, full = stack.kernels, plan.train.remat == "full"
    count = costs.launches[back] + (back and full) * costs.launches.forward
    if stacks_kept(plan) and not full:
        count += costs.stacked_launches[back]
    if plan.config.experts:
        biases = experts_have_biases(plan) * costs.bias_launches[back]
        held = plan.config.experts // plan.size(*over)
        count += costs.router_launches[back] + held * (costs.expert_launches[back] + biases)
    if not softmax_is_fused(plan, stack):
        again = back and plan.train.remat != "none"
        count += costs.unfused_launches[back] + again * costs.unfused_launches.forward
    return count * plan.config.layers_in_block


def head(plan: Plan, stack: Stack, parts: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The kernels of logits and loss for one microbatch, forward and backward, where `parts` devices split them."""
    tokens, rows, itemsize = plan.share.tokens, plan.padded_vocab / parts, BYTES[plan.train.dtype]
    dims = (tokens, rows, plan.config.embed)
    moved = stack.kernels.logit_bytes * tokens * (plan.padded_vocab if stack.gathers_logits else rows) / 2
    moved += table_bytes(plan, stack, rows) / 2
    again = (matmul(*dims, itemsize),) if plan.logits_again else ()
    forward = (matmul(*dims, itemsize), Kernel("memory", 0, moved))
    return forward, (*again, *gradients_of(*dims, itemsize), Kernel("memory", 0, moved))
