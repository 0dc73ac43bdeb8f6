"""Work of a device in a part of a step, and its schedule: events in order, with the work that overlaps collectives.

GPU programs have separate start and done instructions. So do TPU programs for collectives on the sparse cores.
Other collectives of a TPU are split over a chain of fusions: the first starts the collective, the last waits for it,
and those in between also compute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.program.collectives import Collective, OverlappedWork, kind_of
from benchmarks.program.hlo import Computation, Instruction


@dataclass(frozen=True)
class Work:
    """Work of a device in a part of a step.

    Attributes:
        flops: two per multiplication in dots and convolutions, none for anything else. Calls of cuBLAS and of cuDNN's
            attention count as the dots that they replace, attention without early queries to late keys.
        annotated: for each conditional whose branches have annotated counts, and each loop annotated to run zero or one
            times: the number of iterations of the loop around it that the counts refer to, the work in all of these
            iterations, and the largest possible work in one of them.
        memory_bytes: bytes that the device reads and writes in its memory (hbm.py).
    """

    collectives: tuple[Collective, ...] = ()
    flops: int = 0
    annotated: tuple[tuple[int, "Work", "Work"], ...] = ()
    memory_bytes: int = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes that the device sends in all executions of all collectives, rounded down."""
        return int(sum(each.times * each.sent_bytes for each in self.collectives))

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.collectives + other.collectives,
            self.flops + other.flops,
            self.annotated + other.annotated,
            self.memory_bytes + other.memory_bytes,
        )

    def iterated(self, trips: int) -> "Work":
        """The work of a loop with this body."""
        total = replace(self, annotated=())._repeated(trips)
        for annotated_trips, in_all, in_one in self.annotated:
            # Counts that belong to another loop do not apply: assume the largest work in each iteration.
            total += in_all._repeated(1) if annotated_trips == trips else in_one._repeated(trips)
        return total

    def outside_loops(self) -> "Work":
        """The work without a loop around it: annotated parts count with their largest possible work."""
        return sum((in_one for _, _, in_one in self.annotated), start=replace(self, annotated=()))

    def _repeated(self, times: int) -> "Work":
        """The work, executed this many times in a loop."""
        work = self.outside_loops()
        collectives = (replace(each, times=times * each.times, in_loop=True) for each in work.collectives)
        return Work(tuple(collectives), times * work.flops, memory_bytes=times * work.memory_bytes)


def conditional(branches: Sequence[Work], taken: Sequence[int]) -> Work:
    """Work of a conditional, by how often each branch is taken; without annotation, the heaviest branch counts."""
    most = heaviest(branches)
    if not taken:
        return most
    in_all = Work()
    for branch, times in zip(branches, taken, strict=True):
        collectives = (replace(each, times=times * each.times) for each in branch.collectives)
        sent = tuple(each for each in collectives if each.times)
        in_all += Work(sent, times * branch.flops, memory_bytes=times * branch.memory_bytes)
    return Work(annotated=((sum(taken), in_all, most),))


def heaviest(branches: Sequence[Work]) -> Work:
    """The branch that sends the most bytes and, among equals, has the most FLOPs."""
    return max(branches, key=lambda branch: (branch.sent_bytes, branch.flops))


@dataclass(frozen=True)
class Part:
    """Events that another event executes, several times over: the body of a loop, or a branch.

    Attributes:
        taken: for a branch, how often it is taken in how many iterations of the loop around it, as annotated: (0, 0)
            without annotation. Where that loop has another number of iterations, `times` applies. None for a loop.
    """

    events: tuple["Event", ...]
    times: int = 1
    taken: tuple[int, int] | None = None

    def mean_times(self, trips: int) -> float:
        """Mean number of executions in a loop of `trips` iterations; `trips=0` means that no loop is around it."""
        taken, iterations = self.taken or (0, 0)
        return taken / iterations if trips and iterations == trips else self.times


@dataclass(frozen=True)
class Event:
    """An instruction in its place in the schedule.

    Attributes:
        work: its work with all that it executes; a collective counts where it starts.
        parts: for a loop and a conditional, what it executes, one after another.
        begins: names under which later events wait for its collectives; empty if the program waits for them at once.
        waits_for: names of the collectives that end here.
    """

    name: str
    work: Work
    parts: tuple[Part, ...] = ()
    begins: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it takes no time."""
        return self.work == Work() and not self.parts and not self.waits_for


def scheduled(computation: Computation, events: Sequence[Event]) -> list[Event]:
    """The events of a computation with starts and ends of collectives, and their overlapped work, filled in.

    A collective that is split over a chain of fusions counts once.
    """
    instructions = list(computation.instructions.values())
    works = [event.work for event in events]
    ends = _ends(instructions, works)
    found, chains, in_flight = [], set(), dict[str, int]()
    for position, (instruction, event) in enumerate(zip(instructions, events, strict=True)):
        waits_for = tuple(name for name, end in in_flight.items() if end == position)
        collectives, begun = [], tuple[str, ...]()
        for each in event.work.collectives:
            chain = each.chain if instruction.opcode == "fusion" else ""
            if chain in chains:  # its first fusion was counted
                continue
            if chain:
                chains.add(chain)
            if name := chain or (instruction.name if instruction.opcode.endswith("-start") else ""):
                end = ends.get(name, len(works))
                each = _overlapping(each, works[position + 1 : end], wrapped=not kind_of(instruction))
                if each.overlapped and end > position:
                    begun, in_flight[name] = (*begun, name), end
            collectives.append(replace(each, chain="") if chain else each)
        work = replace(event.work, collectives=tuple(collectives))
        found.append(replace(event, work=work, begins=begun, waits_for=waits_for))
    return found


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
