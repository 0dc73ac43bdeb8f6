"""Overlap of communication and computation, from the schedule of the compiled program.

Two collectives in flight at once each count all work between their own start and end. The simulated schedule
(simulate/program.py) says how much of their time is exposed.
"""

from collections.abc import Mapping, Sequence

from benchmarks.cli.tables import amount
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import Program

OVERLAP_KINDS = {
    "beside_matmuls": "overlaps matmuls",
    "beside_memory": "overlaps memory",
    "beside_nothing": "overlaps nothing",
    "waited_for": "synchronous",
}
"""Ends of the names of columns, in words."""


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
