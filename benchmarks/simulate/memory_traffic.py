"""Bytes that a layer reads and writes to keep what its backward pass reads, and to cast its weights."""

from benchmarks.simulate.stack import NOTHING_KEPT, ForwardBackward, Stack
from strategies.core.matrices import moments_of
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.costs import layer
from strategies.costs.memory import block_elements

CAST_AHEAD_BYTES = 12
"""Of `KernelCosts.stacked` for a weight, which pipeline stages save that cast weights once a step: twice a slice of two
bytes is copied, instead of 20 for slices of four and their casts."""
SEQUENCE_BYTES = 4
"""Read and written for an element that is gathered or scattered along the sequence, because that is not the first dim
(`Backend.gathers_outermost_only`)."""

ADAMW_MOMENT_BYTES = 8


def kept_bytes(plan: Plan, stack: Stack) -> ForwardBackward:
    """Bytes that a layer reads and writes to keep what its backward pass reads, and to cast weights (`KernelCosts`).

    Half are of the forward pass.
    """
    kept, weights = layer.kept_bytes(plan.share), block_elements(plan) / plan.layers
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


def update_bytes(plan: Plan, stack: Stack) -> float:
    """Bytes that the optimizer reads and writes, if the axes of `Placement.updates` divide every weight.

    AdamW reads and writes two float32 moments, Muon and SGD only their momentum (`KernelCosts.optimizer_bytes`).
    """
    total = 0.0
    for weight in plan.weights.values():
        kept = sum(BYTES[dtype] for dtype in moments_of(weight.spec, plan.train).values())
        shards = plan.size(*plan.placement.not_splitting(weight.spec.dims, plan.placement.updates))
        total += (stack.kernels.optimizer_bytes - 2 * (ADAMW_MOMENT_BYTES - kept)) * weight.elements / shards
    return total


def table_bytes(plan: Plan, stack: Stack, rows: float) -> float:
    """Bytes read and written to cast so many rows of the head's table, and to sum its gradients over microbatches.

    By the constants of a layer's weights, whose casts and sums in a loop are alike: with four microbatches the bytes of
    gpt2 are 3% more than compiled.
    """
    costs, several = stack.kernels, plan.train.microbatches > 1
    return (costs.kept.of_weights + several * costs.stacked.of_weights) * rows * plan.config.embed


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
