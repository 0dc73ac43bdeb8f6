"""Work of a device in a part of a step, with the rules that add it up in loops and conditionals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.program.collectives import Collective


@dataclass(frozen=True)
class Work:
    """Work of a device in a part of a step.

    Attributes:
        collectives: what the device sends.
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
    """Work of a conditional.

    Args:
        branches: work of each branch.
        taken: annotated number of times that each branch is taken; empty if there is no annotation, in which case the
            branch with the most bytes sent and then the most FLOPs counts.
    """
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
