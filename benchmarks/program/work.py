"""What a device does in some part of a step, and what that adds up to in loops and conditionals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.program.collectives import Collective


@dataclass(frozen=True)
class Work:
    """What a device does in some part of a step.

    Attributes:
        flops: two for each multiplication in dots and convolutions, none for anything else. Calls of cuBLAS and of
            cuDNN's attention count as the dots they stand for, attention without early queries to late keys.
        told: of conditionals that are told how often their branches are taken while the loop around them runs, and of
            loops that are told how often they run once then: the trips of the loop around them, what is done in all of
            these, and what is done in one of them at most.
        memory_bytes: that it reads and writes in its memory, see hbm.py.
    """

    collectives: tuple[Collective, ...] = ()
    flops: int = 0
    told: tuple[tuple[int, "Work", "Work"], ...] = ()
    memory_bytes: int = 0

    @property
    def sent_bytes(self) -> int:
        """By all collectives."""
        return sum(each.times * each.sent_bytes for each in self.collectives)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.collectives + other.collectives,
            self.flops + other.flops,
            self.told + other.told,
            self.memory_bytes + other.memory_bytes,
        )

    def looped(self, trips: int) -> "Work":
        """The same in a loop."""
        own = replace(self, told=())._repeated(trips)
        for told_trips, in_all, in_one in self.told:  # another loop than was meant may go the other way each time
            own += in_all._repeated(1) if told_trips == trips else in_one._repeated(trips)
        return own

    def at_most(self) -> "Work":
        """Without a loop around it."""
        return sum((in_one for _, _, in_one in self.told), start=replace(self, told=()))

    def _repeated(self, times: int) -> "Work":
        work = self.at_most()
        collectives = (replace(each, times=times * each.times, in_loop=True) for each in work.collectives)
        return Work(tuple(collectives), times * work.flops, memory_bytes=times * work.memory_bytes)


def conditional(branches: Sequence[Work], taken: Sequence[int]) -> Work:
    """One of its branches at most; or each as often as it is taken, where that is told."""
    most = max(branches, key=lambda branch: (branch.sent_bytes, branch.flops))
    if not taken:
        return most
    in_all = Work()
    for branch, times in zip(branches, taken, strict=True):
        collectives = (replace(each, times=times * each.times) for each in branch.collectives)
        sent = tuple(each for each in collectives if each.times)
        in_all += Work(sent, times * branch.flops, memory_bytes=times * branch.memory_bytes)
    return Work(told=((sum(taken), in_all, most),))
