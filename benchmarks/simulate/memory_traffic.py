"""Bytes that a layer reads and writes besides what its kernels do: copies for collectives, and what it keeps."""

from benchmarks.simulate.stack import ForwardBackward, Precision, Stack
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.costs.memory import block_elements


def traffic_bytes(plan: Plan, stack: Stack, precision: Precision | None) -> ForwardBackward:
    """Bytes of `copied_bytes` and of `kept_bytes`."""
    return ForwardBackward(*map(sum, zip(copied_bytes(plan, stack, precision), kept_bytes(plan, stack), strict=True)))


def kept_bytes(plan: Plan, stack: Stack) -> ForwardBackward:
    """Bytes that a layer reads and writes to keep what its backward pass reads, and to cast weights (`KernelCosts`).

    Half are of the forward pass.
    """
    kept, weights = plan.block.kept_bytes(plan.share), block_elements(plan) / plan.layers
    stacks = plan.backend.copies_into_stacks and plan.loops_layers
    rates = (stack.kernels.kept, *([stack.kernels.stacked] if stacks else []))
    less = plan.casts_ahead * stack.kernels.cast_ahead_bytes * weights
    half = (sum(each.of_kept * kept + each.of_weights * weights for each in rates) - less) / 2
    return ForwardBackward(half, half)


def table_bytes(plan: Plan, stack: Stack, rows: float) -> float:
    """Bytes read and written to cast so many rows of the head's table, and to sum its gradients over microbatches.

    By the constants of a layer's weights, whose casts and sums in a loop are alike: with four microbatches the bytes of
    gpt2 are 3% more than compiled.
    """
    costs, several = stack.kernels, plan.train.microbatches > 1
    return (costs.kept.of_weights + several * costs.stacked.of_weights) * rows * plan.config.embed


def copied_bytes(plan: Plan, stack: Stack, precision: Precision | None) -> ForwardBackward:
    """Bytes that a layer reads and writes to copy what collectives gather or scatter (`KernelCosts`).

    Tensorwise fp8 gathers weights in one byte. Full recomputation repeats all collectives of the sequence but the last.
    """
    costs, dtype, branches = stack.kernels, BYTES[plan.train.dtype], len(plan.block.branches())
    weights = gathered_elements(plan) if costs.copies_shards else 0
    out = 2 * weights * (1 if precision and precision.name == "fp8" else dtype)
    into = weights * (dtype + BYTES[plan.train.reduce_dtype])
    stream = 2 * dtype * plan.share.tokens * plan.config.embed * (costs.copies_sequence and plan.sequence_parallel)
    again = {"full": 2 * branches - 1, "dots": branches, "none": 0}[plan.train.remat]
    return ForwardBackward(out + 2 * branches * stream, out + into + (2 * branches + again) * stream)


def gathered_elements(plan: Plan) -> float:
    """Elements of a layer's weights that a device gathers; 0 if they are not sharded."""
    return 0 if plan.shards == 1 else plan.shards * block_elements(plan) / plan.layers
