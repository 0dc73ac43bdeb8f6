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
    """What all stages do together in one tick: int32 arrays [ticks], or one entry of each; -1 for nothing.

    Attributes:
        enters: the microbatch that is embedded, before the turns.
        leaves: the one whose loss is computed, after them.
        returns: the one whose gradient has come back to the embedding.
    """

    enters: Any
    leaves: Any
    returns: Any


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
        sent = {key: tick for key, tick in tick_of.items() if key[1].kind != "W"}
        sources = {key: schedule.needs(*key) for key in sent}
        # What is sent in one tick can be used from the next on; in that very tick another may take its slot.
        arrivals = {key: (tick_of[source], tick_of[key]) for key, source in sources.items() if source != key}
        x, x_depth = slots({key: life for key, life in arrivals.items() if key[1].kind == "F"})
        dy, dy_depth = slots({key: life for key, life in arrivals.items() if key[1].kind == "B"})
        passes = [(stage, op.microbatch, op.chunk) for (stage, op) in tick_of if op.kind == "F"]
        ends = {(stage, m, c): tick_of[stage, Op(last, m, c)] + 1 for stage, m, c in passes}
        kept, kept_depth = slots({(s, Op("F", m, c)): (tick_of[s, Op("F", m, c)], ends[s, m, c]) for s, m, c in passes})
        put_off, put_off_depth = slots(
            {(s, Op("F", m, c)): (tick_of[s, Op("B", m, c)], ends[s, m, c]) for s, m, c in passes}
            if schedule.splits_backward
            else {}
        )
        depths = Depths(x_depth, dy_depth, kept_depth, put_off_depth)
        shape = schedule.ticks, schedule.stages
        nowhere = {"x": x_depth, "dy": dy_depth, "kept": kept_depth, "put_off": put_off_depth}
        nowhere |= {"got_x": x_depth, "got_dy": dy_depth, "got_loss": dy_depth}
        turns = Turn(**{name: np.full(shape, nowhere.get(name, 0), np.int32) for name in Turn._fields})
        shared = Shared(*(np.full(schedule.ticks, -1, np.int32) for _ in Shared._fields))
        for key, tick in tick_of.items():
            stage, op = key
            at, about = (tick, stage), (stage, Op("F", op.microbatch, op.chunk))
            turns.kind[at] = KINDS.index(op.kind)
            turns.chunk[at] = op.chunk
            turns.kept[at] = kept[about]
            turns.put_off[at] = put_off.get(about, 0)
            if op.kind == "W":
                continue
            slot = (x if op.kind == "F" else dy).get(key)
            if slot is None:
                turns.first[at], shared.enters[tick] = 1, op.microbatch
                continue
            getattr(turns, "x" if op.kind == "F" else "dy")[at] = slot
            source = sources[key]
            sent_at = tick_of[source]
            if op.kind == "F":
                turns.got_x[sent_at, stage] = slot
            elif source == about:
                turns.got_loss[sent_at, stage], shared.leaves[sent_at] = slot, op.microbatch
            else:
                turns.got_dy[sent_at, stage] = slot
            if op.kind == "B" and stage == op.chunk == 0:
                shared.returns[tick] = op.microbatch
        return cls(turns, shared, depths)


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
