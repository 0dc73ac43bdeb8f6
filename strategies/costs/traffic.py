"""Traffic model: the bytes that a step sends, by its layout. One list of terms, `TERMS`, serves all strategies.

A term is a function of a `Plan` that yields what one device sends in a step, and why. It yields nothing if its axes
split nothing. The sum of the terms is what the program sends, to the byte: tests/strategies/costs/test_predict.py
compares it with compiled programs.

Bytes are those of the program's dtypes. XLA's CPU backend sends bfloat16 as float32.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from strategies.costs.plan import BYTES, Plan, Weight
from strategies.model.gpt import Block
from strategies.model.weights import is_matrix
from strategies.sharding.collectives import communicates_by_gloo
from strategies.sharding.layout import Axes
from strategies.training.compression import BLOCK, padded
from strategies.training.sharded_update import held_dtype

Bytes = int | Fraction
"""Bytes that a device sends on average, exactly: three devices may not divide them. Sums are rounded down."""


def _exactly(numerator: int, denominator: int) -> Bytes:
    return Fraction(numerator, denominator) if numerator % denominator else numerator // denominator


SENT: Mapping[str, Callable[[int, int], Bytes]] = {
    "all_reduce": lambda operand, group: _exactly(2 * operand * (group - 1), group),
    "all_gather": lambda operand, group: operand * (group - 1),
    "reduce_scatter": lambda operand, group: _exactly(operand * (group - 1), group),
    "all_to_all": lambda operand, group: _exactly(operand * (group - 1), group),
    "permute": lambda operand, group: operand,
}
"""(bytes of the operand, devices in the group) -> bytes that each device sends, at least (Thakur et al. 2005,
"Optimization of Collective Communication Operations in MPICH", section 4; NCCL tests, doc/PERFORMANCE.md)."""


@dataclass(frozen=True)
class Traffic:
    """What one device sends in a step by one kind of collective, over some axes, for one purpose.

    Attributes:
        what: what is sent.
        kind: the kind of collective, a key of `SENT`.
        axes: mesh axes along which the devices of a group differ.
        operand_bytes: bytes of the operands of all these collectives in a step.
        sent_bytes: bytes that the device sends for them.
        dtype: of what is sent.
        innermost: whether parts of the last dim of a matrix are sent, whose elements are not next to each other.
    """

    what: str
    kind: str
    axes: Axes
    operand_bytes: int
    sent_bytes: Bytes
    dtype: str = "float32"
    innermost: bool = False


Term = Callable[[Plan], Iterator[Traffic]]


def traffic(
    plan: Plan, what: str, kind: str, axes: Axes, elements: int, *, dtype: str = "float32", innermost: bool = False
) -> Iterator[Traffic]:
    """Yield the traffic of collectives over `axes` whose operands have `elements` elements in all; none on one device.

    `what`, `kind`, `dtype` and `innermost` are those of `Traffic`. Where devices communicate by gloo, a reduce-scatter
    is an all-to-all (sharding/collectives.py).
    """
    over = plan.over(axes)
    if kind == "reduce_scatter" and communicates_by_gloo():
        kind = "all_to_all"
    if over and elements:
        operand = BYTES[dtype] * elements
        yield Traffic(what, kind, over, operand, SENT[kind](operand, plan.size(*over)), dtype, innermost)


def losses(plan: Plan) -> Iterator[Traffic]:
    """train_step.py: the loss, over the axes that split the batch and weights or updates."""
    for axes in (plan.layout.shards, plan.layout.updates):
        yield from traffic(plan, "loss", "all_reduce", axes, 1)


def replica_sums(plan: Plan) -> Iterator[Traffic]:
    """gradients.py: the loss, and each gradient once a step, over the axes along which weights are replicated.

    With compression="int8" codes are sent instead (compression.py). With "onebit" this is what the warm-up steps send:
    in a compiled program the larger branch of a conditional counts. `Strategy.replica_sums` replaces this term.
    """
    replicas = plan.layout.replicas
    yield from traffic(plan, "loss", "all_reduce", replicas, 1)
    if plan.train.compression == "int8":
        codes = padded(plan.elements, plan.size(*replicas))
        for kind, count in (("all_to_all", codes), ("all_gather", codes // plan.size(*replicas))):
            yield from traffic(plan, "codes", kind, replicas, count, dtype="int8")
            yield from traffic(plan, "scales", kind, replicas, count // BLOCK)
        return
    for weight in plan.weights:
        shard = weight.elements // plan.updates
        yield from traffic(plan, "gradients", "all_reduce", replicas, shard, dtype=plan.train.reduce_dtype)


def updates(plan: Plan) -> Iterator[Traffic]:
    """zero.py: reduce-scatters of gradients, once a step or for each microbatch, and gathers of updated weights."""
    if not (axes := plan.layout.updates):
        return
    times = plan.train.microbatches if plan.layout.scatters_each else 1
    dtype = plan.train.reduce_dtype
    yield from traffic(plan, "gradients", "reduce_scatter", axes, times * plan.elements, dtype=dtype)
    for weight in plan.weights:
        held, part = held_dtype(weight.dims, plan.train), weight.elements // plan.updates
        yield from traffic(plan, "weights", "all_gather", axes, part, dtype=held)


def gathers(plan: Plan) -> Iterator[Traffic]:
    """fsdp.py: gathers of sharded weights, and reduce-scatters of their gradients.

    The gradient of a tied table is scattered for each of its two uses.
    """
    if not (axes := plan.layout.shards):
        return
    by_layer = plan.train.gather == "layer"
    for weight in (weight for weight in plan.weights if {*axes} & {*weight.axes}):
        whole = weight.elements * plan.shards
        once, again = weight.elements, 0
        if by_layer and weight.of_blocks:
            once, again = of_blocks(plan, weight)
        elif by_layer:
            once = of_ends(plan, weight) * weight.elements
        scattered = plan.train.microbatches * (2 if is_tied(plan, weight) else 1) if by_layer else 1
        innermost = is_matrix(weight.dims) and bool({*axes} & {*weight.last_axes})
        term = partial(traffic, plan, axes=axes, innermost=innermost)
        dtype, reduce_dtype = plan.dtype(weight), plan.train.reduce_dtype
        yield from term("weights", "all_gather", elements=once, dtype=dtype)
        yield from term("weights again", "all_gather", elements=again, dtype=dtype)
        yield from term("gradients", "reduce_scatter", elements=scattered * whole, dtype=reduce_dtype)


def of_blocks(plan: Plan, weight: Weight) -> tuple[int, int]:
    """Elements of a weight of the layers that are gathered in a step: for the forward pass, and again for the backward.

    Both count microbatches. A weight is gathered again if the backward pass needs it (`Backward`). With `remat="none"`
    the backward pass needs no vectors. With prefetch the last layer's weights are kept until the backward pass.
    """
    train = plan.train
    needs = {"needed": True, "recomputation": train.remat == "full", "unused": False}
    needed = needs[weight.backward] and (train.remat != "none" or is_matrix(weight.dims))
    forward = train.microbatches * weight.elements
    kept = forward // plan.layers if train.prefetch == "on" else 0
    return forward, forward - kept if train.regather and needed else 0


def of_ends(plan: Plan, weight: Weight) -> int:
    """How often a weight of the embedding or of the head is gathered in a step.

    Outside of loops the compiler merges equal gathers. Weights are constant in the loop over microbatches, so it moves
    their gathers before the loop. A pipeline schedule gathers in each tick what the tick needs: the embedding for a
    microbatch that enters, the head for one that leaves, and a tied table once for both.
    """
    if not plan.staged:
        return 1
    shared = plan.ticks.shared
    ticks = int(((shared.enters >= 0) | (shared.leaves >= 0)).sum())
    return 1 + ticks if is_tied(plan, weight) else plan.train.microbatches


def is_tied(plan: Plan, weight: Weight) -> bool:
    """Whether a weight is the token table that the embedding and the head share."""
    return plan.config.tied and weight.name == "embedding.token_VD"


def layers(plan: Plan) -> Iterator[Traffic]:
    """tensor.py: sums of branches and of the head, forward and backward. Empty slots of a stage count as layers."""
    dtype, tensors = plan.train.dtype, plan.axes_of("head_features")
    branches = len(Block.branches())
    # With remat="full" sums are repeated, except that of the last branch: it is the input of the next layer.
    again = branches - 1 if plan.train.remat == "full" else 0
    sums = (2 * branches + again) * plan.layers * plan.residual
    if not plan.sequence_parallel:
        yield from traffic(plan, "layers", "all_reduce", tensors, sums, dtype=dtype)
        yield from traffic(plan, "head", "all_reduce", tensors, plan.residual, dtype=dtype)
        return
    yield from traffic(plan, "layers", "reduce_scatter", tensors, sums, dtype=dtype)
    gathered = 3 * branches * plan.layers * plan.own_residual
    yield from traffic(plan, "layers", "all_gather", tensors, gathered, dtype=dtype)
    yield from traffic(plan, "head", "reduce_scatter", tensors, plan.residual, dtype=dtype)
    yield from traffic(plan, "head", "all_gather", tensors, plan.own_residual, dtype=dtype)
    replicated = sum(weight.elements for weight in plan.weights if not {*tensors} & {*weight.axes})
    yield from traffic(plan, "gradients held alike", "all_reduce", tensors, replicated, dtype=plan.train.reduce_dtype)


def vocabulary(plan: Plan) -> Iterator[Traffic]:
    """tensor.py: sums of an embedding, forward and backward, and of a loss that are split over the vocabulary."""
    axes, dtype = plan.vocab_axes, plan.train.dtype
    if plan.sequence_parallel:
        tensors = plan.axes_of("head_features")
        other_axes = tuple(axis for axis in axes if axis not in tensors)
        yield from traffic(plan, "embedding", "reduce_scatter", tensors, plan.residual, dtype=dtype)
        yield from traffic(plan, "embedding", "all_reduce", other_axes, plan.own_residual, dtype=dtype)
        yield from traffic(plan, "embedding", "all_gather", tensors, plan.own_residual, dtype=dtype)
    else:
        yield from traffic(plan, "embedding", "all_reduce", axes, plan.residual, dtype=dtype)
    # Three numbers a token: the largest logit, the sum of exponentials, and the target's logit.
    yield from traffic(plan, "loss", "all_reduce", axes, 3 * plan.tokens)


def stages(plan: Plan) -> Iterator[Traffic]:
    """pipeline.py: what stages send their neighbours in each exchange, and the all-reduces of embedding and head."""
    if not plan.staged:
        return
    along = plan.axes_of("layers")
    sent = plan.ticks.exchanges * plan.own_residual // plan.train.microbatches
    yield from traffic(plan, "stages", "permute", along, sent, dtype=plan.train.dtype)
    # The last stage's result, its gradient, and that of the first stage's input.
    yield from traffic(plan, "ends", "all_reduce", along, 3 * plan.own_residual, dtype=plan.train.dtype)
    head = [weight for weight in plan.weights if weight.name.startswith("head.") and "vocab" not in weight.dims]
    dtype, whole = plan.train.reduce_dtype, sum(weight.elements for weight in head) * plan.gathered
    yield from traffic(plan, "gradients held alike", "all_reduce", along, whole, dtype=dtype)


def attention(plan: Plan) -> Iterator[Traffic]:
    """context.py: hops of keys, values and their gradients along a ring, or the all-to-alls of Ulysses."""
    axes, keeps_output = plan.layout.tokens, plan.train.remat != "full"
    devices, features = plan.size(*axes), plan.layers * plan.tokens * plan.share.head_features
    if plan.share.skipping and not plan.ulysses:
        # Keys and values that the window reaches, and their gradients back; recomputation repeats the former.
        earlier = plan.layers * plan.share.earlier_tokens * plan.train.microbatches * plan.share.head_features
        sent = (2 if keeps_output else 3) * 2 * earlier
        yield from traffic(plan, "keys and values", "permute", axes, sent, dtype=plan.train.dtype)
    elif not plan.ulysses:
        # Recomputation repeats all hops but the first: the compiler merges that with the first of the backward pass.
        again = 0 if keeps_output else devices - 2
        hops = 2 * (devices - 1) + devices + again
        sent = hops * 2 * features
        yield from traffic(plan, "keys and values", "permute", axes, sent, dtype=plan.train.dtype)
    else:
        sent = (2 if keeps_output else 3) * 4 * features
        yield from traffic(plan, "tokens and heads", "all_to_all", axes, sent, dtype=plan.train.dtype)


def norm(plan: Plan) -> Iterator[Traffic]:
    """train_step.py, in every strategy: a sum of squares for each set of axes that splits any gradients."""
    for axes in sorted({plan.over((*weight.axes, *plan.layout.updates)) for weight in plan.weights}):
        yield from traffic(plan, "norm", "all_reduce", axes, 1)


TERMS: tuple[Term, ...] = (gathers, updates, losses, replica_sums, stages, attention, layers, vocabulary, norm)
"""All terms. They apply to every strategy: a term whose axes split nothing yields nothing."""
