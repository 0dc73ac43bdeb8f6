"""Which collectives run while the device computes: what a schedule has between their start and their end."""

from collections.abc import Mapping

from benchmarks.compiled import Program

COLUMNS = tuple(f"overlap.sent_bytes.{how}" for how in ("behind_compute", "behind_nothing", "waited_for"))


def overlap(program: Program) -> Mapping[str, int | None]:
    """Bytes that a device sends in a step: while it multiplies, while it does not, and those that it waits for at once.

    Each is None where the text of the program is in no schedule.
    """
    if not program.scheduled:
        return dict.fromkeys(COLUMNS)
    row = dict.fromkeys(COLUMNS, 0)
    for each in program.collectives:
        behind = COLUMNS[2] if each.meanwhile is None else COLUMNS[0] if each.meanwhile.flops else COLUMNS[1]
        row[behind] += each.times * each.sent_bytes
    return {**row}
