"""Compiler rewrites: how the compiled collectives of a step differ from those that its strategy states.

A ledger holds, by kind and axes, the operand bytes of compiled collectives minus those stated. Each rewrite that is
recognised is subtracted from it and reported with its arrays, axes and cost. What remains is reported as unexplained,
so the costs of all rewrites add up to the difference in bytes sent.

The rewrites were observed with libtpu of JAX 0.10.2 for v5e and v5p, and with XLA for H100.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.cli.tables import amount
from benchmarks.program.collectives import Collective
from benchmarks.program.hlo import bytes_of, dims
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.core.traffic import SENT, Bytes, is_tied
from strategies.costs.predict import Cost
from strategies.model.weights import STACKS

Key = tuple[str, Axes]


@dataclass(frozen=True)
class Rewrite:
    """One way in which the compiled communication differs from the stated one.

    Attributes:
        name: a key of `NAMES`.
        what: the array, or a description of it.
        axes: mesh axes of the compiled collective.
        stated_bytes: bytes that a device sends for it per step, as stated.
        sent_bytes: the same as compiled.
    """

    name: str
    what: str
    axes: Axes
    stated_bytes: Bytes
    sent_bytes: Bytes

    @property
    def cost_bytes(self) -> Bytes:
        """Additional bytes that a device sends because of the rewrite; negative if it sends fewer."""
        return self.sent_bytes - self.stated_bytes

    def __str__(self) -> str:
        """The rewrite in words, with its bytes."""
        sent = f"sends {amount(float(self.sent_bytes), 'B')} instead of {amount(float(self.stated_bytes), 'B')}"
        over = f" over {','.join(self.axes)}" if self.axes else ""
        return f"{self.what}{over}: {NAMES[self.name]}: {sent}"


NAMES = {
    "all_gather_as_all_reduce": "the all-gather became an all-reduce of the full array, with zeros for others' parts",
    "reduce_scatter_as_all_reduce": "the reduce-scatter became an all-reduce of the full array, and a slice of that",
    "padded": "the reduce-scatter pads its operand to make equal parts",
    "shifted": "parts that do not begin where a device's part begins are shifted to the neighbour",
    "widened": "it is sent as float32",
    "moved_out": "it is added up over microbatches, whole, and sent once, not in parts for each of them",
    "added_up": "its gradients from both ends of the model are added up, and sent once",
    "gathered_again": "it is gathered once more, and not kept for the backward pass",
    "unexplained": "nothing here explains it",
    "rounding": "collectives were combined, and bytes are rounded down for each",
}


def rewrites(cost: Cost, compiled: Sequence[Collective]) -> list[Rewrite]:
    """All differences between the compiled collectives of a step and the stated ones, most costly first."""
    ledger = _Ledger(cost, compiled)
    found = [
        *ledger.decomposed(),
        *ledger.padded(),
        *ledger.shifted(),
        *ledger.widened(),
        *ledger.moved_out(),
        *ledger.added_up(),
        *ledger.gathered_again(),
        *ledger.unexplained(),
    ]
    sent = int(sum(op.times * op.sent_bytes for op in compiled))
    if rounding := sent - cost.sent_bytes - sum(rewrite.cost_bytes for rewrite in found):
        found.append(Rewrite("rounding", "sums", (), 0, rounding))
    return sorted(found, key=lambda rewrite: -abs(rewrite.cost_bytes))


def summarized(found: Sequence[Rewrite]) -> list[Rewrite]:
    """One rewrite per name and axes, for a report: the costliest array, and the number of further ones.

    Unexplained bytes of different kinds of collectives stay apart. In a sum, fewer of one would cancel more of another.
    """
    groups: dict[tuple[str, Axes, str], list[Rewrite]] = {}
    for rewrite in found:
        kind = rewrite.what if rewrite.name == "unexplained" else ""
        groups.setdefault((rewrite.name, rewrite.axes, kind), []).append(rewrite)
    return [
        Rewrite(
            *(name, _several([rewrite.what for rewrite in group]), axes),
            sum(rewrite.stated_bytes for rewrite in group),
            sum(rewrite.sent_bytes for rewrite in group),
        )
        for (name, axes, _), group in groups.items()
    ]


def _several(what: Sequence[str]) -> str:
    return f"{what[0]} and {len(what) - 1} more" if len(what) > 1 else what[0]


class _Ledger:
    """Operand bytes by kind and axes: compiled, minus stated, minus those explained so far."""

    def __init__(self, cost: Cost, compiled: Sequence[Collective]) -> None:
        self.cost, self.plan, self.compiled = cost, cost.plan, compiled
        self.left: Counter[Key] = Counter()
        for op in compiled:
            self.left[op.kind, op.axes] += op.times * op.operand_bytes
        for term in cost.traffic:
            self.left[term.kind, term.axes] -= term.operand_bytes

    def sent(self, kind: str, axes: Axes, operand_bytes: int) -> int:
        """Bytes that a device sends for operands of this size."""
        return int(SENT[kind](operand_bytes, self.plan.size(*axes)))

    def decomposed(self) -> Iterator[Rewrite]:
        """All-reduces of full arrays in place of stated all-gathers or reduce-scatters, by array."""
        full: Counter[tuple[str, Axes, str]] = Counter()
        stated = {(term.kind, term.axes) for term in self.cost.traffic}
        for op in self.compiled:
            for array, kind in zip(op.arrays, op.decomposed, strict=False):  # those of other collectives have none
                if (kind, op.axes) in stated and dims(array):  # scalars are not sharded
                    full[kind, op.axes, array] += op.times * bytes_of(array)
        for (kind, axes, array), whole in full.items():
            part = whole // self.plan.size(*axes) if kind == "all_gather" else whole
            self.left["all_reduce", axes] -= whole
            self.left[kind, axes] += part
            stated, sent = self.sent(kind, axes, part), self.sent("all_reduce", axes, whole)
            weights = any(what.startswith(("weights", "gradients")) for what in self.cost.sent[kind, axes])
            what = with_weights(array, self.plan) if weights else array
            yield Rewrite(f"{kind}_as_all_reduce", what, axes, stated, sent)

    def padded(self) -> Iterator[Rewrite]:
        """Reduce-scatters whose operands are padded to equal parts."""
        for axes in {op.axes for op in self.compiled if op.padding_bytes and op.kind == "reduce_scatter"}:
            mine = [op for op in self.compiled if op.kind == "reduce_scatter" and op.axes == axes]
            padding = sum(op.times * op.padding_bytes for op in mine)
            self.left["reduce_scatter", axes] -= padding
            yield Rewrite("padded", "gradients", axes, 0, self.sent("reduce_scatter", axes, padding))

    def shifted(self) -> Iterator[Rewrite]:
        """Permutes without a traced `ppermute`, on axes where reduce-scatters are padded."""
        for axes in {op.axes for op in self.compiled if op.padding_bytes}:
            mine = [op for op in self.compiled if op.kind == "permute" and op.axes == axes]
            shifted = sum(op.times * op.operand_bytes for op in mine if not op.source.endswith("ppermute"))
            if shifted:
                self.left["permute", axes] -= shifted
                yield Rewrite("shifted", "gradients", axes, 0, shifted)

    def widened(self) -> Iterator[Rewrite]:
        """Collectives stated in bfloat16 and compiled in float32."""
        for (kind, axes), left in [*self.left.items()]:
            stated = [
                term for term in self.cost.traffic if (term.kind, term.axes, term.dtype) == (kind, axes, "bfloat16")
            ]
            half = sum(term.operand_bytes for term in stated)
            if half == left > 0:
                self.left[kind, axes] = 0
                what = ", ".join(dict.fromkeys(term.what for term in stated))
                yield Rewrite("widened", what, axes, self.sent(kind, axes, half), self.sent(kind, axes, 2 * half))

    def moved_out(self) -> Iterator[Rewrite]:
        """Gradient reductions stated once per microbatch and compiled once per step."""
        times = self.plan.train.microbatches
        for (kind, axes), left in [*self.left.items()]:
            mine = [
                term for term in self.cost.traffic if (term.kind, term.axes, term.what) == (kind, axes, "gradients")
            ]
            stated = sum(term.operand_bytes for term in mine)
            if left < 0 and -left * times == stated * (times - 1):
                self.left[kind, axes] = 0
                sent = self.sent(kind, axes, stated // times)
                yield Rewrite("moved_out", "gradients", axes, self.sent(kind, axes, stated), sent)

    def added_up(self) -> Iterator[Rewrite]:
        """Gradients of a tied embedding, stated once for each of its two uses and compiled once."""
        for table in (weight for weight in self.plan.weights.values() if is_tied(self.plan, weight)):
            axes, itemsize = self.plan.over(self.plan.placement.shards), BYTES[self.plan.train.reduce_dtype]
            once = itemsize * table.elements * self.plan.shards * self.plan.train.microbatches
            # The tolerance of 10% is for vectors that are reduced in another way.
            if axes and abs(self.left["reduce_scatter", axes] + once) < once / 10:
                self.left["reduce_scatter", axes] += once
                stated, sent = (self.sent("reduce_scatter", axes, times * once) for times in (2, 1))
                yield Rewrite("added_up", table.spec.name, axes, stated, sent)

    def gathered_again(self) -> Iterator[Rewrite]:
        """All-gathers of weights beyond the stated ones."""
        for (kind, axes), left in [*self.left.items()]:
            if kind == "all_gather" and left > 0 and "weights" in self.cost.sent.get((kind, axes), {}):
                self.left[kind, axes] = 0
                whole = "the head's weights" if left == self._head(axes) else "weights"
                yield Rewrite("gathered_again", whole, axes, 0, self.sent(kind, axes, left))

    def _head(self, axes: Axes) -> int:
        """Bytes per device of the weights that the head uses, including a tied token table."""
        table = "embedding.token" if self.plan.config.tied else "head."
        mine = [
            weight
            for weight in self.plan.weights.values()
            if weight.spec.name.startswith(("head.", table)) and set(axes) <= set(weight.axes)
        ]
        return sum(BYTES[self.plan.dtype(weight)] * weight.elements for weight in mine)

    def unexplained(self) -> Iterator[Rewrite]:
        """The bytes that no other rewrite explains, by kind and axes."""
        for (kind, axes), left in self.left.items():
            if left:
                sent = self.sent(kind, axes, abs(left))
                more, less = (sent, 0) if left > 0 else (0, sent)
                yield Rewrite("unexplained", kind, axes, less, more)


def with_weights(array: str, plan: Plan) -> str:
    """An array's shape with the names of the weights that have this shape on a device, in any order of dims."""
    sizes = {**plan.held_config.dim_sizes, "vocab": plan.padded_vocab}

    def local(dim: str) -> int:
        return sizes[dim] // plan.size(*plan.axes_of(dim))

    wanted = sorted(size for size in dims(array) if size > 1)
    names = [
        weight.spec.name
        for weight in plan.weights.values()
        if sorted(local(dim) for dim in weight.spec.dims if dim not in STACKS) == wanted
        or sorted(plan.layers if dim == "layers" else local(dim) for dim in weight.spec.dims) == wanted
    ]
    return f"{array} ({', '.join(names[:2])}{' and others' * (len(names) > 2)})" if names else array
