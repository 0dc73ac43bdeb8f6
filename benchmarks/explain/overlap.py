"""Overlap of communication and computation, from the schedule of the compiled program.

Two collectives in flight at once each count all work between their own start and end. The simulated schedule
(simulate/program.py) says how much of their time is exposed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.cli.tables import amount
from benchmarks.program.collectives import Collective, OverlappedWork
from benchmarks.program.compiled import Program
from strategies.core.traffic import Bytes

OVERLAP_KINDS = ("beside_matmuls", "beside_memory", "beside_nothing", "waited_for")


def overlap(program: Program) -> Mapping[str, int | str]:
    """The columns on overlap per device and step; none if the program's text is not in schedule order.

    `overlap.sent_bytes.*` are the bytes sent while matmuls run (`beside_matmuls`); while the device only reads or
    writes memory (`beside_memory`); while it does neither (`beside_nothing`); and by collectives that it waits for at
    once (`waited_for`). `overlap.text` lists them by kind and axes, with the overlapped FLOPs and bytes of memory.
    """
    if not program.scheduled:
        return {}
    groups: dict[tuple[str, tuple[str, ...], str], OverlapTotals] = {}
    for collective in program.collectives:
        groups.setdefault((collective.kind, collective.axes, overlap_kind(collective)), OverlapTotals()).add(collective)
    sent = {
        f"overlap.sent_bytes.{kind}": int(sum(group.sent_bytes for key, group in groups.items() if key[2] == kind))
        for kind in OVERLAP_KINDS
    }
    most_first = sorted(groups.items(), key=lambda item: -item[1].sent_bytes)
    text = "; ".join(
        f"{kind} over {','.join(axes)}: {group.describe(name)}" for (kind, axes, name), group in most_first
    )
    return {**sent, "overlap.text": text}


def overlap_kind(collective: Collective) -> str:
    """What a collective overlaps with: one of `OVERLAP_KINDS`."""
    if collective.overlapped is None:
        return "waited_for"
    if collective.overlapped.flops:
        return "beside_matmuls"
    return "beside_memory" if collective.overlapped.memory_bytes else "beside_nothing"


@dataclass
class OverlapTotals:
    """Totals per step of collectives with the same kind, axes and overlap kind.

    Attributes:
        sent_bytes: bytes that a device sends.
        flops: overlapped FLOPs.
        memory_bytes: overlapped bytes of memory traffic.
    """

    sent_bytes: Bytes = 0
    flops: int = 0
    memory_bytes: int = 0

    def add(self, collective: Collective) -> None:
        """Add all executions of a collective."""
        overlapped = collective.overlapped or OverlappedWork()
        self.sent_bytes += collective.times * collective.sent_bytes
        self.flops += collective.times * overlapped.flops
        self.memory_bytes += collective.times * overlapped.memory_bytes

    def describe(self, kind: str) -> str:
        """The totals in words.

        >>> OverlapTotals(39_300_000_000, 54_100_000_000_000, 12_000_000).describe("beside_matmuls")
        '39.3 GB beside matmuls (54.1 TFLOP, 12 MB of memory)'
        >>> OverlapTotals(4_000_000).describe("waited_for")
        '4 MB waited for'
        """
        done = [amount(self.flops, "FLOP")] if self.flops else []
        moved = [f"{amount(self.memory_bytes, 'B')} of memory"] if self.memory_bytes else []
        overlapped = f" ({', '.join([*done, *moved])})" if done or moved else ""
        return f"{amount(int(self.sent_bytes), 'B')} {kind.replace('_', ' ')}{overlapped}"
