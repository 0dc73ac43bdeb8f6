"""Overlap in the schedule: the work between the start of each collective and its end.

GPU programs have separate start and done instructions. So do TPU programs for collectives on the sparse cores.
Other collectives of a TPU are split over a chain of fusions: the first starts the collective, the last waits for it,
and those in between also compute.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.program.collectives import Collective, OverlappedWork, kind_of
from benchmarks.program.hlo import Computation, Instruction
from benchmarks.program.work import Work


def with_overlap(computation: Computation, works: Sequence[Work]) -> list[Work]:
    """Work of each instruction of a computation, in order, with the overlapped work of its collectives filled in.

    A collective that is split over a chain of fusions counts once.

    Args:
        computation: a computation of a scheduled program.
        works: work of each of its instructions.
    """
    instructions = list(computation.instructions.values())
    ends = _ends(instructions, works)
    counted, chains = [], set()
    for position, (instruction, work) in enumerate(zip(instructions, works, strict=True)):
        collectives = []
        for each in work.collectives:
            chain = each.chain if instruction.opcode == "fusion" else ""
            if chain in chains:
                continue
            if chain or instruction.opcode.endswith("-start"):
                until = ends.get(chain or instruction.name, len(works))
                each = _overlapping(each, works[position + 1 : until], wrapped=not kind_of(instruction))
            chains |= {chain} - {""}
            collectives.append(replace(each, chain="") if chain else each)
        counted.append(replace(work, collectives=tuple(collectives)))
    return counted


def _ends(instructions: Sequence[Instruction], works: Sequence[Work]) -> dict[str, int]:
    """Positions where asynchronous collectives end, by the name of their start instruction or by their chain."""
    ends, starts = {}, {}
    for position, (instruction, work) in enumerate(zip(instructions, works, strict=True)):
        ends |= {each.chain: position for each in work.collectives if each.chain}
        if instruction.opcode.endswith(("-done", "-update")) and instruction.operands:
            start = starts[instruction.name] = starts.get(instruction.operands[0], instruction.operands[0])
            ends[start] = position
    return ends


def _overlapping(collective: Collective, between: Sequence[Work], *, wrapped: bool) -> Collective:
    """The collective with the work between its start and its end; unchanged if the program waits for it at once."""
    if collective.overlapped is None and not wrapped:
        return collective
    done = [work.outside_loops() for work in between]
    overlapped = OverlappedWork(sum(work.flops for work in done), sum(work.memory_bytes for work in done))
    return replace(collective, overlapped=overlapped)
