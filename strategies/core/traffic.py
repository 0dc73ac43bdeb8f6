"""Traffic: what a step sends, term by term. An axis states its terms next to its code (`Axis.traffic`).

A term is a function of a `Plan` that yields what one device sends in a step, when, and why. It yields nothing if its
axes split nothing. The terms add up to what the program sends, to the byte: tests/strategies/test_laws.py
compares them with compiled programs. This file has the terms that every strategy has.

Bytes use the program's dtypes. XLA's CPU backend sends bfloat16 as float32.
"""

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

from strategies.arguments import require_instance
from strategies.core.matrices import Muon, matrix_dtype
from strategies.core.newton_schulz import ITERATIONS
from strategies.core.placement import Axes, Weight
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.infeasible import BrokenStrategy
from strategies.names import Named, in_a_line

Bytes = int | Fraction
"""Mean bytes that a device sends, exactly: three devices may not divide them. Sums are rounded down."""


def _exactly(numerator: int, denominator: int) -> Bytes:
    return Fraction(numerator, denominator) if numerator % denominator else numerator // denominator


SENT: Mapping[str, Callable[[int, int], Bytes]] = Named(
    "kind of collective",
    {
        "all_reduce": lambda operand, group: _exactly(2 * operand * (group - 1), group),
        "all_gather": lambda operand, group: operand * (group - 1),
        "reduce_scatter": lambda operand, group: _exactly(operand * (group - 1), group),
        "all_to_all": lambda operand, group: _exactly(operand * (group - 1), group),
        "permute": lambda operand, group: operand,
    },
)
"""(bytes of the operand, devices in the group) -> bytes that each device sends, at least (Thakur et al. 2005,
"Optimization of Collective Communication Operations in MPICH", section 4; NCCL tests, doc/PERFORMANCE.md)."""


WHEN = (
    "before forward",
    "forward",
    "forward and backward",
    "backward",
    "after each microbatch",
    "after backward",
    "update",
)
"""The parts of a step, in order."""
ArrayKind = Literal["activations", "weights", "gradients", "number"]
"""Kinds of arrays. A number is the loss or a part of the gradients' norm."""


@dataclass(frozen=True)
class Traffic:
    """What one device sends in a step by one kind of collective, over some axes, for one purpose.

    Attributes:
        kind: the kind of collective, a key of `SENT`.
        axes: mesh axes along which the devices of a group differ.
        operand_bytes: bytes of the operands of all these collectives in a step.
        sent_bytes: bytes that the device sends for them.
        innermost: whether parts of a matrix's last dim are sent, whose elements are not contiguous.
        array: kind of array: activations, weights, gradients, or a single number.
        when: the part of the step, one of `WHEN`.
    """

    what: str
    kind: str
    axes: Axes
    operand_bytes: int
    sent_bytes: Bytes
    dtype: str = "float32"
    innermost: bool = False
    array: ArrayKind = "activations"
    when: str = "forward and backward"


Term = Callable[[Plan], Iterator[Traffic]]


def traffic(
    plan: Plan,
    what: str,
    kind: str,
    axes: Axes,
    elements: int,
    *,
    dtype: str = "float32",
    innermost: bool = False,
    array: ArrayKind = "activations",
    when: str = "forward and backward",
    group: int | None = None,
) -> Iterator[Traffic]:
    """Yield the traffic of collectives over `axes` whose operands have `elements` elements in total; none on one
    device.

    `group` is the number of devices of a group; default: all along the axes. The other arguments are as for `Traffic`.
    Where the transport's reduce-scatter has a bug, it is an all-to-all (shards.py).
    """
    if kind == "reduce_scatter" and plan.backend.reduce_scatters_wrongly:
        kind = "all_to_all"
    if elements and (over := plan.over(axes)):
        operand = BYTES[dtype] * elements
        sent_bytes = SENT[kind](operand, group or plan.size(*over))
        yield Traffic(what, kind, over, operand, sent_bytes, dtype, innermost, array, when)


def losses(plan: Plan) -> Iterator[Traffic]:
    """The mean of the tokens' losses, and what layers add, over all axes that split tokens (gradients.py)."""
    axes, terms = (*plan.placement.batch, *plan.placement.tokens), plan.head_uses + len(plan.block.extras())
    yield from traffic(plan, "loss", "all_reduce", axes, terms, array="number", when="after backward")


def partial_gradients(plan: Plan) -> Iterator[Traffic]:
    """Sums of partial gradients of replicated weights (`Axis.partial_gradient`), or of shards if already scattered."""
    for axis in plan.active:
        term = partial(traffic, plan, "replicated-weight gradients", "all_reduce", (axis.name,), array="gradients")
        weights = [weight for weight in plan.weights.values() if axis.partial_gradient(plan, weight.spec)]
        for dtype, elements in elements_by_dtype(plan, ((each, _held_elements(plan, each)) for each in weights)):
            yield from term(elements, dtype=dtype, when="after backward")


def _held_elements(plan: Plan, weight: Weight) -> int:
    """Elements of a weight's gradient on a device after the backward pass."""
    scattered = plan.placement.reduce_scatter_per_microbatch or plan.sums_in_loop(weight.spec)
    return weight.updated_elements if scattered else weight.elements


def balance(plan: Plan) -> Iterator[Traffic]:
    """Number of choices of each expert, over the axes that split tokens, once a microbatch (model/experts.py).

    Where experts are balanced over each sequence, there are numbers for each, over the axes that split sequences.
    """
    batch, tokens = plan.placement.batch, plan.placement.tokens
    if plan.config.balance_loss:
        numbers = plan.layers_and_mtp * plan.block.mixtures() * plan.config.dim_sizes["experts"]
        of_sequences = plan.config.balance_over == "sequence"
        times = plan.train.batch_size // plan.size(*batch) if of_sequences else plan.train.microbatches
        axes = tokens if of_sequences else (*batch, *tokens)
        yield from traffic(plan, "choices", "all_reduce", axes, times * numbers, when="forward")


def replica_sums(plan: Plan) -> Iterator[Traffic]:
    """Each gradient once a step over its weight's replicas (gradients.py), unless `Axis.replica_sums` replaces this."""
    when = plan.when_summed
    times = plan.train.microbatches if plan.train.reduce == "layer" else 1
    for weight in plan.weights.values():
        summed = weight.updated_elements * (times if weight.spec.is_stacked else 1)
        term = partial(traffic, plan, "gradients", "all_reduce", array="gradients", when=when)
        yield from term(weight.summed, summed, dtype=plan.summed_dtype(weight))


def elements_by_dtype(plan: Plan, counts: Iterable[tuple[Weight, int]]) -> Iterator[tuple[str, int]]:
    """Numbers of elements of weights' gradients, by the dtype in which they are summed over devices."""
    elements = Counter[str]()
    for weight, count in counts:
        elements[plan.summed_dtype(weight)] += count
    yield from elements.items()


def norm(plan: Plan) -> Iterator[Traffic]:
    """A sum of squares for each set of axes that splits any gradient (gradients.py)."""
    for axes in sorted({plan.over(weight.updated_axes) for weight in plan.weights.values()}):
        yield from traffic(plan, "norm", "all_reduce", axes, 1, array="number", when="update")


def orthogonalisation(plan: Plan) -> Iterator[Traffic]:
    """Parts of matrices, and sums of Gram matrices, with Muon (newton_schulz.py)."""
    term = partial(traffic, plan, array="gradients", when="update")
    narrow = partial(term, dtype=matrix_dtype(plan.train))
    for group in Muon(plan).groups:
        part = group.part
        if group.placement == "deal":
            for _, over in group.split:
                yield from narrow("matrices", "all_to_all", over, 2 * group.dealt * part)
            continue
        for _, over in group.split:
            if over != group.summed:
                yield from narrow("matrices", "all_gather", over, group.count * part)
                part *= plan.size(*over)
        yield from narrow("Gram matrices", "all_reduce", group.summed, ITERATIONS * group.count * group.rows**2)
        yield from term("norms of matrices", "all_reduce", group.summed, group.count)


def terms_of(plan: Plan) -> tuple[Term, ...]:
    """All terms of a step: those of its axes, and those of every strategy unless an axis replaces them."""
    # No two axes set `reduce`.
    sums = [axis.replica_sums for axis in plan.active if axis.replica_sums][:1] or [replica_sums]
    of_batch = dict.fromkeys(term for axis in plan.active if axis.batch for term in axis.traffic)
    others = [term for axis in plan.active if not axis.batch for term in axis.traffic]
    last = [term for i, term in enumerate(others) if term not in others[i + 1 :]]  # two axes may share a term
    return (*of_batch, balance, losses, partial_gradients, *sums, *last, norm, orthogonalisation)


def stated(plan: Plan) -> Iterator[Traffic]:
    """All traffic of a step."""
    for term in terms_of(plan):
        if getattr(term, "__module__", "").startswith("strategies."):
            yield from term(plan)
        else:
            yield from _checked(plan, term)


def _checked(plan: Plan, term: Term) -> list[Traffic]:
    """The traffic that a term yields. An error in a user's term becomes `BrokenStrategy`."""
    try:
        yielded = [*term(plan)]
        for each in yielded:
            _require_traffic(plan, each)
    except (Exception, SystemExit) as error:
        name = f"the term {getattr(term, '__qualname__', term)} of a user's strategy"
        way_out = "it must yield Traffic, as `yield from traffic(plan, ...)` does"
        raise BrokenStrategy(f"{name} raises or yields something invalid ({in_a_line(error)}); {way_out}") from error
    return yielded


def _require_traffic(plan: Plan, each: Any) -> None:
    require_instance(each, Traffic, "a value", ValueError)
    allowed = {
        "kind": each.kind in SENT,
        "axes": isinstance(each.axes, tuple) and {*each.axes} <= {*plan.mesh.sizes},
        "operand_bytes": isinstance(each.operand_bytes, int) and each.operand_bytes >= 0,
        "sent_bytes": isinstance(each.sent_bytes, Bytes) and each.sent_bytes >= 0,
        "when": each.when in WHEN,
    }
    if wrong := [name for name, is_allowed in allowed.items() if not is_allowed]:
        raise ValueError(f"{wrong[0]}={reprlib.repr(getattr(each, wrong[0]))} cannot be")


def is_tied(plan: Plan, weight: Weight) -> bool:
    """Whether a weight is the token table that embedding and head share."""
    return plan.config.tied and weight.spec.name == "embedding.token_VD"
