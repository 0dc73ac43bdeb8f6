"""What a row says of its compiled program compared with the formulas: what the compiler changed, and overlap.

A compiler may send an all-gather as an all-reduce, add gradients up before it sends them, or send bfloat16 as float32.
Two collectives in flight at once each count all work between their own start and end as overlap. The simulated schedule
(simulate/program.py) says how much of their time is exposed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cli.tables import amount
from benchmarks.program.collectives import Collective, axis_of
from benchmarks.program.compiled import ROW_KEYS, Program
from benchmarks.program.flops import unstated_flops
from strategies import Infeasible
from strategies.core.placement import Axes
from strategies.core.traffic import Bytes
from strategies.costs.predict import Cost, predict

SENT = tuple(key for key in ROW_KEYS if key.startswith("compiled.sent_bytes."))
OVERLAP_KINDS = {
    "beside_matmuls": "overlaps matmuls",
    "beside_memory": "overlaps memory",
    "beside_nothing": "overlaps nothing",
    "waited_for": "synchronous",
}
"""Ends of the names of columns, in words."""


@dataclass(frozen=True)
class Rewrite:
    """Bytes that a device sends in a step by one kind of collective, where they are not those of the formulas."""

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


def predicted_columns(case: Case, compiled: Mapping[str, Any]) -> dict[str, float | None]:
    """The columns of a row, per device and step; None where the formulas or `compiled` do not know.

    A step whose collectives the compiler decides has the predictions of its hand-written twin, for comparison only:
    `sent_as_predicted` is None for it. `compiled` are the columns of the compiled program, if there is one.
    """
    stated = case.has_formulas
    cost = cost_of(case)
    sent = {key: compiled.get(key) for key in SENT}
    by_axis: dict[str, Bytes] = dict.fromkeys(SENT, 0)
    for (kind, axes), parts in cost.sent.items() if cost else ():
        by_axis[f"compiled.sent_bytes.{kind}.{axis_of(axes)}"] += sum(parts.values())
    as_predicted = sent == {key: int(exact) for key, exact in by_axis.items()}
    total = compiled.get("compiled.sent_bytes")
    return {
        "predicted.flops": cost and sum(cost.flops.values()) // case.mesh.size,
        "predicted.sent_bytes": cost and cost.sent_bytes,
        "predicted.argument_bytes": cost and sum(cost.arguments.values()),
        "predicted.residual_bytes": cost and cost.temporaries["activations"],
        "predicted.temp_bytes": cost and sum(cost.temporaries.values()) if case.backend.platform != "cpu" else None,
        "predicted.bubble": cost and cost.bubble,
        "predicted.lockstep_bubble": cost and cost.lockstep_bubble,
        "sent_over_predicted": total / cost.sent_bytes if total is not None and cost and cost.sent_bytes else None,
        "sent_as_predicted": as_predicted if total is not None and cost and stated else None,
    }


def cost_of(case: Case) -> Cost | None:
    """Cost of a case by formulas; None if its strategy has no formulas or the case is infeasible.

    Where the compiler decides what is sent, that of the hand-written twin.
    """
    by_hand = case if case.has_formulas else case.twin or case
    try:
        return predict(by_hand.strategy, case.config, case.mesh, by_hand.resolved, case.backend)
    except Infeasible:
        return None


def explanation_columns(case: Case, program: Program) -> Mapping[str, Any]:
    """Columns on overlap, and on rewrites unless the compiler decides what is sent.

    `rewrites.sent_bytes` and `rewrites.flops` are what a device sends and computes per step beyond the formulas, and
    `rewrites.text` says by which collectives.
    """
    row: dict[str, Any] = {**overlap(program)}
    cost = cost_of(case) if case.has_formulas else None
    if cost is None:
        return row
    extra_flops = unstated_flops(cost, program.flops)
    computed = [f"{what}: {amount(flops, 'FLOP')} more" for what, flops in extra_flops.items()]
    return row | {
        "rewrites.sent_bytes": program.sent_bytes - cost.sent_bytes,
        "rewrites.text": "; ".join([*map(str, rewrites(cost, program.collectives)), *computed]),
        "rewrites.flops": sum(extra_flops.values()),
    }


def rewrites(cost: Cost, compiled: Iterable[Collective]) -> list[Rewrite]:
    """All differences between the compiled collectives of a step and the stated ones, the largest first."""
    stated = {key: sum(parts.values()) for key, parts in cost.sent.items()}
    sent: dict[tuple[str, Axes], Bytes] = {}
    for op in compiled:
        sent[op.kind, op.axes] = sent.get((op.kind, op.axes), 0) + op.times * op.sent_bytes
    keys = dict.fromkeys(chain(stated, sent))
    found = (Rewrite(*key, stated.get(key, 0), sent.get(key, 0)) for key in keys)
    return sorted((each for each in found if each.cost_bytes), key=lambda rewrite: -abs(rewrite.cost_bytes))


def overlap(program: Program) -> Mapping[str, int | str]:
    """The columns on overlap per device and step; none if the program's text is not in schedule order.

    `overlap.sent_bytes.*` are the bytes sent while matmuls run (`beside_matmuls`); while the device only reads or
    writes memory (`beside_memory`); while it does neither (`beside_nothing`); and by collectives that it waits for at
    once (`waited_for`). `overlap.text` lists them by kind and axes, with the overlapped FLOPs and bytes of memory.
    """
    if not program.scheduled:
        return {}
    groups: dict[tuple[str, tuple[str, ...], str], list[Collective]] = {}
    for collective in program.collectives:
        groups.setdefault((collective.kind, collective.axes, overlap_kind(collective)), []).append(collective)
    sent = {key: sum(one.times * one.sent_bytes for one in group) for key, group in groups.items()}
    columns = {
        f"overlap.sent_bytes.{name}": int(sum(sent_bytes for key, sent_bytes in sent.items() if key[2] == name))
        for name in OVERLAP_KINDS
    }
    text = "; ".join(
        f"{kind} over {','.join(axes)}: {amount(int(sent_bytes), 'B')}, {OVERLAP_KINDS[name]}"
        f"{meanwhile(groups[kind, axes, name])}"
        for (kind, axes, name), sent_bytes in sorted(sent.items(), key=lambda item: -item[1])
    )
    return {**columns, "overlap.text": text}


def overlap_kind(collective: Collective) -> str:
    """What a collective overlaps with: a key of `OVERLAP_KINDS`."""
    if collective.overlapped is None:
        return "waited_for"
    if collective.overlapped.flops:
        return "beside_matmuls"
    return "beside_memory" if collective.overlapped.memory_bytes else "beside_nothing"


def meanwhile(group: Sequence[Collective]) -> str:
    """What a device does between the starts and the ends of collectives in a step, in brackets; "" if nothing."""
    done = [(one.times, one.overlapped) for one in group if one.overlapped]
    flops, memory_bytes = sum(n * work.flops for n, work in done), sum(n * work.memory_bytes for n, work in done)
    texts = [amount(flops, "FLOP")] if flops else []
    texts += [f"{amount(memory_bytes, 'B')} of memory"] if memory_bytes else []
    return f" ({', '.join(texts)})" if texts else ""
