"""What instructions of a computation do in the order in which they stand: what runs while a collective does.

On GPUs a start and a done are instructions of their own, and so they are where a TPU has its sparse cores do it. Else
it weaves a collective into fusions: the first of a chain starts it, the last waits for it, and those in between
compute, too.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.program.collectives import Collective, Meanwhile, kind_of
from benchmarks.program.hlo import Computation, Instruction
from benchmarks.program.work import Work


def in_schedule(where: Computation, works: Sequence[Work]) -> list[Work]:
    """What each instruction of a computation does, in order: a chain once, collectives with what is done meanwhile."""
    instructions = list(where.instructions.values())
    ends = _ends(instructions, works)
    told, chains = [], set()
    for place, (instruction, work) in enumerate(zip(instructions, works, strict=True)):
        collectives = []
        for each in work.collectives:
            own = each.chain if instruction.opcode == "fusion" else ""
            if own in chains:
                continue
            if own or instruction.opcode.endswith("-start"):
                until = ends.get(own or instruction.name, len(works))
                each = _while(each, works[place + 1 : until], wrapped=not kind_of(instruction))
            chains |= {own} - {""}
            collectives.append(replace(each, chain="") if own else each)
        told.append(replace(work, collectives=tuple(collectives)))
    return told


def _ends(instructions: Sequence[Instruction], works: Sequence[Work]) -> dict[str, int]:
    """Where what is asynchronous ends, by the name of its start or by its chain."""
    ends, starts = {}, {}
    for place, (instruction, work) in enumerate(zip(instructions, works, strict=True)):
        ends |= {each.chain: place for each in work.collectives if each.chain}
        if instruction.opcode.endswith(("-done", "-update")) and instruction.operands:
            start = starts[instruction.name] = starts.get(instruction.operands[0], instruction.operands[0])
            ends[start] = place
    return ends


def _while(each: Collective, between: Sequence[Work], *, wrapped: bool) -> Collective:
    """With what is done between its start and its end; nothing is, if it is waited for at once."""
    if each.meanwhile is None and not wrapped:
        return each
    done = [work.at_most() for work in between]
    meanwhile = Meanwhile(sum(work.flops for work in done), sum(work.memory_bytes for work in done))
    return replace(each, meanwhile=meanwhile)
