"""What the compiler changed of a step's communication: bytes sent by kind of collective and mesh axes.

A compiler may send an all-gather as an all-reduce, add gradients up before it sends them, or send bfloat16 as float32.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from benchmarks.cli.tables import amount
from benchmarks.program.collectives import Collective
from strategies.core.placement import Axes
from strategies.core.traffic import Bytes
from strategies.costs.predict import Cost


@dataclass(frozen=True)
class Rewrite:
    """Bytes that a device sends in a step by one kind of collective, where they are not those of the formulas.

    Attributes:
        kind: of collective.
        axes: mesh axes that it spans.
        stated_bytes, sent_bytes: by the formulas, and as compiled.
    """

    kind: str
    axes: Axes
    stated_bytes: Bytes
    sent_bytes: Bytes

    @property
    def cost_bytes(self) -> Bytes:
        """Bytes that a device sends beyond the formulas; negative if it sends fewer."""
        return self.sent_bytes - self.stated_bytes

    def __str__(self) -> str:
        """The rewrite in words, with its bytes."""
        sent, stated = (amount(float(each), "B") for each in (self.sent_bytes, self.stated_bytes))
        return f"{self.kind} over {','.join(self.axes)}: {sent} instead of {stated}"


def rewrites(cost: Cost, compiled: Iterable[Collective]) -> list[Rewrite]:
    """All differences between the compiled collectives of a step and the stated ones, the largest first."""
    stated = {key: sum(parts.values()) for key, parts in cost.sent.items()}
    sent: dict[tuple[str, Axes], Bytes] = {}
    for op in compiled:
        sent[op.kind, op.axes] = sent.get((op.kind, op.axes), 0) + op.times * op.sent_bytes
    keys = dict.fromkeys(chain(stated, sent))
    found = (Rewrite(*key, stated.get(key, 0), sent.get(key, 0)) for key in keys)
    return sorted((each for each in found if each.cost_bytes), key=lambda rewrite: -abs(rewrite.cost_bytes))


def decomposed_axes(found: Iterable[Rewrite]) -> list[Axes]:
    """The axes over which all-gathers or reduce-scatters became all-reduces of full arrays.

    Such an all-reduce sends twice the bytes. So all-reduces send more, by at least what the others send less.
    """
    more, fewer = Counter[Axes](), Counter[Axes]()
    for each in found:
        if each.kind == "all_reduce" and each.cost_bytes > 0:
            more[each.axes] += int(each.cost_bytes)
        elif each.kind in ("all_gather", "reduce_scatter") and each.cost_bytes < 0:
            fewer[each.axes] -= int(each.cost_bytes)
    return [axes for axes, missing in fewer.items() if more[axes] >= missing]
