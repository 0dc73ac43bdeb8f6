"""Bytes that a layer reads and writes besides what its kernels do: copies for collectives, and what it keeps."""

from benchmarks.simulate.projections import projections
from benchmarks.simulate.stack import ForwardBackward, Precision, Stack
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.costs.memory import block_elements
from strategies.model.part import Part


def traffic_bytes(plan: Plan, stack: Stack, precision: Precision | None) -> ForwardBackward:
    """Bytes of `copied_bytes`, `kept_bytes` and `summed_bytes`."""
    of = copied_bytes(plan, stack, precision), kept_bytes(plan, stack), (0, summed_bytes(plan, stack))
    return ForwardBackward(*map(sum, zip(*of, strict=True)))


def kept_bytes(plan: Plan, stack: Stack) -> ForwardBackward:
    """Bytes that a layer reads and writes to keep what its backward pass reads, and to cast weights (`KernelCosts`).

    Half are of the forward pass.
    """
    kept, weights = plan.block.kept_bytes(plan.share), block_elements(plan) / plan.layers
    rates = (stack.kernels.kept, *([stack.kernels.stacked] if stacks_kept(plan) else []))
    less = plan.casts_ahead * stack.kernels.cast_ahead_bytes * weights
    half = (sum(each.of_kept * kept + each.of_weights * weights for each in rates) - less) / 2
    return ForwardBackward(half, half)


def stacks_kept(plan: Plan) -> bool:
    """Whether a loop copies into stacks what layers keep."""
    return plan.backend.copies_into_stacks and plan.loops_layers


def table_bytes(plan: Plan, stack: Stack, rows: float) -> float:
    """Bytes read and written to cast so many rows of the head's table, and to sum its gradients over microbatches.

    By the constants of a layer's weights, whose casts and sums in a loop are alike: with four microbatches the bytes of
    gpt2 are 3% more than compiled.
    """
    costs, several = stack.kernels, plan.train.microbatches > 1
    return (costs.kept.of_weights + several * costs.stacked.of_weights) * rows * plan.config.embed


def copied_bytes(plan: Plan, stack: Stack, precision: Precision | None) -> ForwardBackward:
    """Bytes that a layer reads and writes to copy what collectives gather or scatter (`KernelCosts`).

    A branch gathers its input, or each of its projections does, and scatters its result; on the way back it gathers the
    gradient of the result, and scatters those of the inputs. Full recomputation repeats all but the last scatter; that
    of some results repeats gathers.
    """
    costs, dtype, branches = stack.kernels, BYTES[plan.train.dtype], plan.block.branches()
    each = stack.gathers_inputs == "projection"
    inputs, results = sum(count_sharing(plan, branch) if each else 1 for branch in branches), len(branches)
    gathered = precision.gathered_bytes if precision else dtype
    weights = gathered_elements(plan) if costs.copies_shards else 0
    out, into = 2 * weights * gathered, weights * (dtype + BYTES[plan.train.reduce_dtype])
    stream = plan.share.tokens * plan.config.embed * plan.sequence_parallel / 2
    gather = costs.sequence_bytes.gathered * gathered * stream
    scatter = costs.sequence_bytes.scattered * dtype * stream
    again = {"full": (inputs, results - 1), "dots": (inputs, 0), "none": (0, 0)}[plan.train.remat]
    gathers, scatters = results + again[0], inputs + again[1]
    return ForwardBackward(
        out + inputs * gather + results * scatter, out + into + gathers * gather + scatters * scatter
    )


def gathered_elements(plan: Plan) -> float:
    """Elements of a layer's weights that a device gathers; 0 if they are not sharded."""
    return 0 if plan.shards == 1 else plan.shards * block_elements(plan) / plan.layers


def summed_bytes(plan: Plan, stack: Stack) -> float:
    """Bytes that a layer's backward pass reads and writes to add the gradients of inputs that projections share."""
    stream = plan.share.tokens * plan.config.embed
    sharing = [count_sharing(plan, branch) for branch in plan.block.branches()]
    return stack.kernels.sum_bytes * stream * sum(max(0, count - 1) for count in sharing)


def count_sharing(plan: Plan, branch: type[Part]) -> int:
    """Matrices of a branch that multiply the residual stream."""
    return sum(each.parts for each in projections(plan, branch) if each.takes_stream)


def cast_bytes(plan: Plan, precision: Precision, *, fused: bool) -> ForwardBackward:
    """Bytes that a layer reads and writes to cast operands, and gradients, to a precision, and to scale results.

    Matmuls of experts that are `fused` cast hidden features themselves, and on the way back their gradients. What the
    tensor axis gathers is cast before, if it is gathered so, and then copied as columns.
    """
    multiplied, own = [*projections(plan)], [*projections(plan, plan.block.branches()[-1])] if fused else []
    out = {each for each in own if each.to_dim == "embed"}
    gathers = plan.sequence_parallel and precision.gathered_bytes < 2
    of_stream = precision.cast_bytes / plan.tensors + 2 * precision.itemsize if gathers else precision.cast_bytes

    def cast(elements: int, *, gathered: bool) -> float:
        return elements * (of_stream if gathered else precision.cast_bytes)

    forward = sum(cast(each.taken, gathered=each.takes_stream) for each in {*multiplied} - out)
    cast_back = [each for each in multiplied if each not in own or each in out]
    backward = sum(cast(each.given, gathered=each.gives_stream) for each in cast_back)
    scaled = sum(each.parts * each.taken + each.weights for each in multiplied)
    return ForwardBackward(forward, backward + precision.rescaled_bytes * scaled)
