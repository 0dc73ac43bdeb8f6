"""The kernels of a layer, of the head and of the optimizer on one device, and their seconds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Literal

from benchmarks.simulate.machine import Machine
from benchmarks.simulate.stack import CAST_BYTES, NONE, NOTHING_KEPT, ForwardBackward, Precision, Stack
from strategies.backends.xla_options import adds_biases_on_one_device
from strategies.core.expert_rows import rows_of
from strategies.core.matrices import Muon, matrix_dtype, moments_of
from strategies.core.newton_schulz import ITERATIONS
from strategies.core.plan import Plan
from strategies.core.share import Share, attention_shares
from strategies.core.sizes import BYTES
from strategies.costs.layer import costs_of, matmuls_of
from strategies.costs.layer import kept_bytes as share_kept_bytes
from strategies.costs.memory import block_elements

WorkKind = Literal["matmul", "attention", "memory"]
Dims = tuple[float, float, float, float]
"""m, n, k of a matmul [m,k] x [k,n], and how many there are side by side."""

TILES = ((256, 128, 1.0), (128, 128, 0.9), (128, 64, 0.75), (64, 64, 0.55))
"""Tiles of the output that a core of a GPU computes at a time, and the rate with each, relative to the largest."""
SCORE_BYTES = ForwardBackward(4 + 5, 5 + 6)
"""Of an attention score that is an array in memory: softmax, dropout; their gradients."""
HEAD_NORM_BYTES = ForwardBackward(2, 4)
"""Of an element of queries and keys that have norms: read once more forward, and twice backward."""
SORTED_BYTES = 2 * 4
"""Of an element of a token that is sorted by expert and back: each time read and written in two bytes."""
STACKED_LAUNCHES = ForwardBackward(5, 10)
"""Further kernels of a layer in a loop that fills stacks, as traced: 86 to 119 instead of 72 to 83."""
CAST_AHEAD_BYTES = 12
"""Of `KernelCosts.stacked` for a weight, which pipeline stages save that cast weights once a step: twice a slice of two
bytes is copied, instead of 20 for slices of four and their casts."""
SEQUENCE_BYTES = 4
"""Read and written for an element that is gathered or scattered along the sequence, which is not the first dim."""


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
    """A matmul, fused attention or a pass over memory, or several that are alike; `itemsize` is of their operands."""

    kind: WorkKind
    flops: float
    moved_bytes: float
    dims: Dims = (0, 0, 0, 0)
    itemsize: float = 2

    def seconds(self, machine: Machine) -> float:
        """Seconds on a machine: of its FLOPs or of its bytes, whichever take longer."""
        constants = machine.constants
        streaming = self.moved_bytes / (machine.chip.memory_bytes_per_second * constants.memory_efficiency)
        if self.kind == "memory":
            return streaming
        best = machine.best_rate(self.itemsize)
        if self.kind == "attention":
            return max(self.flops / best / constants.attention_efficiency, streaming)
        m, n, k, batch = self.dims
        rate = best * constants.matmul_efficiency
        filled = tiles_filled(m, n, batch, machine.chip.cores) if machine.chip.cores else 1.0
        at_ends = constants.matmul_dim * max(1.0, 2 / self.itemsize)  # seconds that a higher rate does not shorten
        return max(self.flops / rate / filled * (1 + at_ends / k), streaming)


@dataclass(frozen=True)
class Layer:
    """The kernels of a layer for one microbatch: forward, of the gradients of the weights of matmuls, and the others of
    the backward pass (`inputs`), which begin with what is recomputed.
    """

    forward: tuple[Kernel, ...]
    inputs: tuple[Kernel, ...]
    weights: tuple[Kernel, ...]

    @property
    def backward(self) -> tuple[Kernel, ...]:
        """The kernels of the whole backward pass."""
        return *self.inputs, *self.weights


def matmul(dims: Dims, itemsize: float) -> Kernel:
    """A batch of matmuls. Results have two bytes at least."""
    m, n, k, batch = dims
    moved = batch * (itemsize * (m * k + k * n) + max(2, itemsize) * m * n)
    return Kernel("matmul", 2 * batch * m * n * k, moved, dims, itemsize)


def gradients_of(dims: Dims, itemsize: float) -> Iterator[Kernel]:
    """The two matmuls of the gradients of `matmul`: of its first operand, and of its second."""
    m, n, k, batch = dims
    yield matmul((m, k, n, batch), itemsize)
    yield matmul((k, n, m, batch), itemsize)


def orthogonalisation(plan: Plan) -> Iterator[Kernel]:
    """The matmuls of Muon, in each iteration a Gram matrix, its square, and their product with the matrices."""
    for group in Muon(plan).groups:
        count, rows, columns = group.orthogonalised_shape
        for dims in ((rows, rows, columns), (rows, rows, rows), (rows, columns, rows)):
            yield matmul((*dims, ITERATIONS * count), BYTES[matrix_dtype(plan.train)])


def projections(plan: Plan) -> Iterator[Dims]:
    """The matmuls with weights of all branches of the layer, as a device does them."""
    for branch in plan.block.branches():
        for one in matmuls_of(branch, plan.config):
            rows, side_by_side = costs_of(branch).rows(plan.share, one)
            of, *to = one.weight.dims  # as the device works with the matrix
            k, *columns = (plan.held_config.dim_sizes[dim] // plan.size(*plan.axes_of(dim)) for dim in (of, *to))
            yield rows, math.prod(columns), k, side_by_side


def layer(plan: Plan, stack: Stack, precision: Precision | None = None) -> Layer:
    """The kernels of a layer on one device for a microbatch. A precision is that of matmuls with weights."""
    itemsize = precision.itemsize if precision else BYTES[plan.train.dtype]
    multiplied = [*projections(plan)]
    forward = [matmul(dims, itemsize) for dims in multiplied]
    gradients = (gradients_of(dims, itemsize) for dims in multiplied)
    backward, weights = map(list, zip(*gradients, strict=True))
    attentions = [attention(plan, stack, each) for each in attention_shares(plan.share)]
    ahead, back = ([kernel for kernels in way for kernel in kernels] for way in zip(*attentions, strict=True))
    passes = [Kernel("memory", 0, moved) for moved in pass_bytes(plan, stack, precision)]
    last = len(multiplied) - costs_of(plan.block.branches()[-1]).last_matmuls(plan.config)
    # Full recomputation repeats all but the last matmul, whose result the backward pass does not need. That of some
    # results repeats scores, or where attention is one kernel only passes over memory, or a part of them.
    full = (*forward[:last], *ahead, passes[0])
    some = ahead if stack.attention == "unfused" else [Kernel("memory", 0, stack.kernels.again * passes[0].moved_bytes)]
    again = {"full": full, "dots": some, "none": ()}[plan.train.remat]
    arrived, expanded = expansions(plan, itemsize)
    extra = zip(kept_bytes(plan, stack), copied_bytes(plan, stack), strict=True)
    out, into = ([Kernel("memory", 0, sum(moved))] * (sum(moved) > 0) for moved in extra)
    forward = (*out, *forward, *ahead, *arrived, passes[0])
    return Layer(forward, (*again, *into, *backward, *back, *expanded, passes[1]), tuple(weights))


def pass_bytes(plan: Plan, stack: Stack, precision: Precision | None) -> ForwardBackward:
    """Bytes of a layer's passes over memory: norms, activations, rotations, rows that are sorted by expert, casts."""
    share, config, costs = plan.share, plan.config, stack.kernels
    mlp, head = costs.mlp_bytes, costs.head_bytes
    if costs.epilogues and adds_biases_on_one_device(plan):
        mlp, head = (ForwardBackward(0, rest) for rest in costs.epilogues)
    scale = BYTES[plan.train.dtype] / 2  # stacks state the bytes of two-byte dtypes
    hidden = sum(costs_of(branch).activated_elements(share) for branch in plan.block.branches()) * scale
    residual = share.residual_tokens * config.embed * scale * config.layers_in_block
    heads = share.tokens * (share.query_features + share.key_features) * scale * config.layers_in_block
    rows = plan.block.mixtures() * rows_of(share) / share.tensors if config.experts else 0
    casts = cast_bytes(plan) if precision else NONE
    normed = HEAD_NORM_BYTES if config.block == "qwen3" else NONE
    return ForwardBackward(
        *(
            costs.residual_bytes[way] * residual
            + mlp[way] * hidden
            + (head[way] + normed[way]) * heads
            + SORTED_BYTES * rows * config.embed * scale
            + casts[way]
            for way in (0, 1)
        )
    )


def cast_bytes(plan: Plan) -> ForwardBackward:
    """Bytes that a layer reads and writes to cast inputs of its matmuls, and gradients of their results."""
    multiplied = [*projections(plan)]
    inputs = sum(m * k * batch for m, _, k, batch in {*multiplied})
    results = sum(m * n * batch for m, n, _, batch in multiplied)
    return ForwardBackward(CAST_BYTES * inputs, CAST_BYTES * results)


def attention(plan: Plan, stack: Stack, share: Share) -> tuple[list[Kernel], list[Kernel]]:
    """The kernels of an attention of a layer, forward and backward; `share` is what the device computes of it."""
    config, itemsize = plan.config, BYTES[plan.train.dtype]
    if stack.attention == "fused":
        return fused_attention(plan, share)
    keys, head, queries = share.computed_keys, config.head_dim, config.sequence / share.contexts
    batch = share.tokens * share.contexts / config.sequence * share.query_features / head
    scores, values = (queries, keys, head, batch), (queries, config.value_dim, keys, batch)
    forward = [matmul(scores, itemsize), matmul(values, itemsize)]
    backward = [kernel for dims in (scores, values) for kernel in gradients_of(dims, itemsize)]
    area = batch * queries * keys * itemsize / 2
    forward.append(Kernel("memory", 0, SCORE_BYTES.forward * area))
    backward.append(Kernel("memory", 0, SCORE_BYTES.backward * area))
    return forward, backward


def expansions(plan: Plan, itemsize: float) -> tuple[list[Kernel], list[Kernel]]:
    """The matmuls of `Share.expansions`, forward and backward."""
    share, (arrived, again), attentions = plan.share, plan.share.expansions, plan.block.attentions()
    dims = [(share.tokens, features, plan.config.dim_sizes["latents"], 1) for features in share.expanded_features]
    once, gradients = [matmul(each, itemsize) for each in dims], [gradients_of(each, itemsize) for each in dims]
    return once * arrived * attentions, [*once * again, *[*chain(*gradients)] * arrived] * attentions


def fused_attention(plan: Plan, share: Share) -> tuple[list[Kernel], list[Kernel]]:
    """The fused kernels of an attention, forward and backward.

    They skip what causality masks, half of the scores, or what a window leaves out, and compute the scores again in the
    backward pass: 5 matmuls for the 2 of the forward pass (Dao et al. 2022, "FlashAttention", section 3.1).
    """
    itemsize = BYTES[plan.train.dtype]
    # A window's keys are those of whole blocks. Of dense attention `Share` counts those that causality masks, too.
    attended = min(share.computed_keys, plan.config.sequence / 2)
    keys, values = (2 * share.tokens * attended * each for each in (share.query_features, share.head_features))
    moved = itemsize * share.tokens * share.attended_features
    forward = Kernel("attention", keys + values, moved, itemsize=itemsize)
    return [forward], [Kernel("attention", 3 * keys + 2 * values, 2 * moved, itemsize=itemsize)]


def kernels_of(plan: Plan, stack: Stack, *, back: bool) -> float:
    """How many kernels a layer has, forward or backward."""
    costs, full = stack.kernels, plan.train.remat == "full"
    count = costs.launches[back] + (back and full) * costs.launches.forward
    if fills_stacks(stack) and stacks_kept(plan) and not full:
        count += STACKED_LAUNCHES[back]
    return count * plan.config.layers_in_block


def head(plan: Plan, stack: Stack, parts: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The kernels of logits, losses and `MTP.join_ID` for one microbatch, both ways; `parts` devices split logits."""
    tokens, rows, itemsize = plan.share.tokens, plan.padded_vocab / parts, BYTES[plan.train.dtype]
    embed, join = plan.config.embed, plan.head_uses - 1
    dims, joined = (tokens, rows, embed, 1), (plan.share.residual_tokens, embed, 2 * embed, 1)
    costs, sums = stack.kernels, plan.train.microbatches > 1  # the table costs what weights of a layer do
    moved = (costs.logit_bytes * tokens + (costs.kept.of_weights + sums * costs.stacked.of_weights) * embed) * rows / 2
    again, passes = (matmul(dims, itemsize),) if plan.logits_again else (), Kernel("memory", 0, moved)
    forward = plan.head_uses * (matmul(dims, itemsize), passes) + join * (matmul(joined, itemsize),)
    backward = plan.head_uses * (*again, *gradients_of(dims, itemsize), passes)
    return forward, backward + join * (*gradients_of(joined, itemsize),)


def kept_bytes(plan: Plan, stack: Stack) -> ForwardBackward:
    """Bytes that a layer moves to keep what its backward pass reads, and to cast weights, half of them forward."""
    kept, weights = share_kept_bytes(plan.share), block_elements(plan) / plan.layers
    rates = (stack.kernels.kept, *([stack.kernels.stacked] if stacks_kept(plan) else []))
    less = plan.casts_ahead * CAST_AHEAD_BYTES * weights if fills_stacks(stack) else 0
    half = (sum(each.of_kept * kept + each.of_weights * weights for each in rates) - less) / 2
    return ForwardBackward(half, half)


def fills_stacks(stack: Stack) -> bool:
    """Whether the program is XLA's on GPUs, where loops fill stacks."""
    return stack.kernels.stacked != NOTHING_KEPT


def stacks_kept(plan: Plan) -> bool:
    """Whether a loop copies into stacks what layers keep."""
    return plan.backend.copies_into_stacks and plan.loops_layers


def copied_bytes(plan: Plan, stack: Stack) -> ForwardBackward:
    """Bytes that a layer of XLA's reads and writes to copy what it gathers and scatters along the sequence.

    Each branch gathers its input and scatters its result, and backward the transposes. Full recomputation repeats all
    but the last scatter; that of some results repeats gathers.
    """
    branches = len(plan.block.branches())
    again = {"full": 2 * branches - 1, "dots": branches, "none": 0}[plan.train.remat]
    stream = plan.share.tokens * plan.config.embed * plan.sequence_parallel * fills_stacks(stack)
    each = SEQUENCE_BYTES * BYTES[plan.train.dtype] / 2 * stream
    return ForwardBackward(2 * branches * each, (2 * branches + again) * each)


def update_bytes(plan: Plan, stack: Stack) -> float:
    """Bytes that the optimizer reads and writes, if the axes of `Placement.updates` divide every weight.

    AdamW reads and writes two float32 moments, Muon and SGD only their momentum (`KernelCosts.optimizer_bytes`).
    """
    total = 0.0
    for weight in plan.weights.values():
        kept = sum(BYTES[dtype] for dtype in moments_of(weight.spec, plan.train).values())
        shards = plan.size(*plan.placement.not_splitting(weight.spec.dims, plan.placement.updates))
        total += (stack.kernels.optimizer_bytes - 2 * (2 * 4 - kept)) * weight.elements / shards
    return total
