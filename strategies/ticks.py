"""A pipeline schedule as arrays that a device reads: at each tick what it does, and where its inputs lie.

What waits for its turn lies in buffers of slots. They are as few as the schedule allows: a slot is free again as soon
as what was in it has been used. One slot more, the last of each buffer, takes what nobody will read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from strategies.schedules import Kind, Op, Schedule

KINDS: tuple[Kind | None, ...] = (None, "F", "B", "W")
"""By the number that stands for it."""

Key = tuple[int, Op]
Lifetimes = Mapping[Key, tuple[int, int]]


class Turn(NamedTuple):
    """What one stage does in one tick: as int32 arrays [ticks, stages], or one entry of each.

    Attributes:
        kind: the index in `KINDS`.
        chunk: of the stage, on which it works.
        first: whether that is the first part of the model, which takes the embedding.
        x, dy: slots of its input, and of the gradient of its output.
        kept: slot of what its backward pass needs.
        put_off: slot of what its gradients of weights need besides.
        got_x, got_dy, got_loss: slots for what arrives at the tick's end: from the stage before, from the one behind,
            and from the loss.
    """

    kind: Any
    chunk: Any
    first: Any
    x: Any
    dy: Any
    kept: Any
    put_off: Any
    got_x: Any
    got_dy: Any
    got_loss: Any


class Shared(NamedTuple):
    """What all stages do together in one tick: arrays [ticks], or one entry of each; microbatches are -1 for none.

    Attributes:
        enters: the microbatch that is embedded, before the turns.
        leaves: the one whose loss is computed, after them.
        returns: the one whose gradient has come back to the embedding.
        sends_x, sends_dy: whether any stage sends to the one behind it, and to the one before.
    """

    enters: Any
    leaves: Any
    returns: Any
    sends_x: Any
    sends_dy: Any


class Depths(NamedTuple):
    """Slots of each buffer on the stage that needs the most."""

    x: int
    dy: int
    kept: int
    put_off: int


@dataclass(frozen=True)
class Ticks:
    """A schedule, told tick by tick."""

    turns: Turn
    shared: Shared
    depths: Depths

    @classmethod
    def of(cls, schedule: Schedule) -> "Ticks":
        """Find the ticks and the slots of a schedule's operations."""
        tick_of = {(stage, op): tick for stage, row in enumerate(schedule.table) for tick, op in enumerate(row) if op}
        last: Kind = "W" if schedule.splits_backward else "B"

        def lives(start: Kind, end: Kind) -> Lifetimes:
            """Of each microbatch and chunk: from the tick of one operation on, and until that of another is over."""
            passes = [(stage, op) for stage, op in tick_of if op.kind == "F"]
            return {
                (stage, op): (tick_of[stage, op._replace(kind=start)], tick_of[stage, op._replace(kind=end)] + 1)
                for stage, op in passes
            }

        # What arrives at the end of one tick may lie in the slot of what was used in that very tick.
        arrivals = {
            key: (tick_of[source], tick)
            for key, tick in tick_of.items()
            if key[1].kind != "W" and (source := schedule.needs(*key)) != key
        }
        x, x_depth = slots({key: life for key, life in arrivals.items() if key[1].kind == "F"})
        dy, dy_depth = slots({key: life for key, life in arrivals.items() if key[1].kind == "B"})
        kept, kept_depth = slots(lives("F", last))
        put_off, put_off_depth = slots(lives("B", "W") if schedule.splits_backward else {})

        shape = schedule.ticks, schedule.stages
        turns = Turn(*(np.zeros(shape, np.int32) for _ in Turn._fields))
        for nobody, depth in ((turns.got_x, x_depth), (turns.got_dy, dy_depth), (turns.got_loss, dy_depth)):
            nobody[:] = depth
        shared = Shared(*(np.full(schedule.ticks, -1, np.int32) for _ in range(3)), *np.zeros((2, shape[0]), bool))
        for (stage, op), tick in tick_of.items():
            at, forward = (tick, stage), (stage, op._replace(kind="F"))
            turns.kind[at], turns.chunk[at], turns.kept[at] = KINDS.index(op.kind), op.chunk, kept[forward]
            turns.put_off[at] = put_off.get(forward, 0)
            turns.x[at], turns.dy[at] = x.get((stage, op), 0), dy.get((stage, op), 0)
            if op.kind == "B" and stage == op.chunk == 0:
                shared.returns[tick] = op.microbatch
            if (stage, op) not in arrivals:
                if op.kind == "F":
                    turns.first[at], shared.enters[tick] = 1, op.microbatch
                continue
            sent = arrivals[stage, op][0]
            if op.kind == "F":
                turns.got_x[sent, stage], shared.sends_x[sent] = x[stage, op], True
            elif schedule.needs(stage, op) == forward:
                turns.got_loss[sent, stage], shared.leaves[sent] = dy[stage, op], op.microbatch
            else:
                turns.got_dy[sent, stage], shared.sends_dy[sent] = dy[stage, op], True
        return cls(turns, shared, Depths(x_depth, dy_depth, kept_depth, put_off_depth))

    @property
    def counts(self) -> Shared:
        """In how many ticks each of these is done."""
        return Shared(
            *(int((column >= 0).sum()) if column.dtype != bool else int(column.sum()) for column in self.shared)
        )


def slots(lifetimes: Lifetimes) -> tuple[dict[Key, int], int]:
    """A slot for each of what lives from one tick to another, on its stage; and how many slots that takes.

    >>> slots({(0, Op("F", 0)): (0, 2), (0, Op("F", 1)): (1, 3), (0, Op("F", 2)): (2, 4)})[1]
    2
    """
    assigned: dict[Key, int] = {}
    ends: dict[int, list[int]] = {}
    for key, (start, end) in sorted(lifetimes.items(), key=lambda item: item[1]):
        of_stage = ends.setdefault(key[0], [])
        slot = next((slot for slot, until in enumerate(of_stage) if until <= start), len(of_stage))
        of_stage[slot : slot + 1] = [end]
        assigned[key] = slot
    return assigned, max(map(len, ends.values()), default=0)
