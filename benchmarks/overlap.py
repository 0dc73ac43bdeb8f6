"""Which collectives run while the device computes: what a schedule has between their start and their end."""

from collections.abc import Mapping

from benchmarks.collectives import Collective
from benchmarks.compiled import Program

HOW = ("behind_matmuls", "behind_memory", "behind_nothing", "waited_for")
COLUMNS = tuple(f"overlap.sent_bytes.{how}" for how in HOW)


def overlap(program: Program) -> Mapping[str, int | None]:
    """Bytes that a device sends in a step, by what it does meanwhile.

    It multiplies; or else it reads or writes its memory, for what no matmul is part of; or it does neither; or it waits
    at once.

    Each is None where the text of the program is in no schedule.
    """
    if not program.scheduled:
        return dict.fromkeys(COLUMNS)
    row: dict[str, int] = dict.fromkeys(HOW, 0)
    for each in program.collectives:
        row[_behind(each)] += each.times * each.sent_bytes
    return dict(zip(COLUMNS, row.values(), strict=True))


def _behind(collective: Collective) -> str:
    """What it is behind, of `HOW`."""
    if collective.meanwhile is None:
        return "waited_for"
    if collective.meanwhile.flops:
        return "behind_matmuls"
    return "behind_memory" if collective.meanwhile.memory_bytes else "behind_nothing"
