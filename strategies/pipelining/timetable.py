"""A pipeline schedule as arrays that a device reads: at each tick what it does, and where its inputs lie.

What waits for its turn lies in buffers of slots. They are as few as the schedule allows: a slot is free again as soon
as what was in it has been used. Of what arrives there is one slot more, the last, for what nobody will read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from strategies.pipelining.schedules import Kind, Op, Schedule

KINDS: tuple[Kind | None, ...] = (None, "F", "B", "W")
"""By the number that stands for it."""

Key = tuple[int, Op]
Lifetimes = Mapping[Key, tuple[int, int]]


class Turn(NamedTuple):
    """What one stage does in one tick: as int32 arrays [ticks, stages], or one entry of each.

    Attributes:
        kind: the index in `KINDS`.
        chunk: of the stage, on which it works.
        takes: slot of what it works on: its input, or on the way back the gradient of its output.
        kept: slot of what its backward pass needs.
        put_off: slot of what its gradients of weights need besides.
        got_entered, got_loss: slots for what arrives at the tick's end from the embedding, and from the loss.
        got_sent: slots for what arrives from other stages [ticks, stages, exchanges].
    """

    kind: Any
    chunk: Any
    takes: Any
    kept: Any
    put_off: Any
    got_entered: Any
    got_loss: Any
    got_sent: Any


class Shared(NamedTuple):
    """What all stages do together at the end of a tick: arrays [ticks], or one entry of each; -1 is none.

    Attributes:
        ends: the index in `Ticks.ends`.
        enters: the microbatch that is embedded, for the next tick.
        leaves: the one whose loss is computed.
        returns: the one whose gradient has come back to the embedding.
        ways: the indices in `Ticks.ways` [ticks, exchanges].
    """

    ends: Any
    enters: Any
    leaves: Any
    returns: Any
    ways: Any


class Depths(NamedTuple):
    """Slots of each buffer on the stage that needs the most."""

    arrived: int
    kept: int
    put_off: int


Ends = tuple[bool, bool, bool]
"""Whether one microbatch enters, one leaves, and one returns."""
Way = tuple[int, int]
"""From which stage to which."""
Ways = tuple[Way, ...]
"""Who sends to whom: no stage twice, and to none twice."""


@dataclass(frozen=True)
class Ticks:
    """A schedule, told tick by tick.

    Attributes:
        ends: what is done at both ends of the model, all together, in some tick.
        ways: for each exchange at a tick's end, in which ways it goes.
    """

    turns: Turn
    shared: Shared
    depths: Depths
    ends: tuple[Ends, ...]
    ways: tuple[tuple[Ways, ...], ...]

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

        arrivals = [Arrival.of(schedule.needs(*key), key, tick_of) for key in tick_of if key[1].kind != "W"]
        # What arrives at the end of one tick may lie in the slot of what was used in that very tick.
        arrived, depth = slots({each.target: (each.after, tick_of[each.target]) for each in arrivals})
        kept, kept_depth = slots(lives("F", last))
        put_off, put_off_depth = slots(lives("B", "W") if schedule.splits_backward else {})
        exchanges, ways = exchanged(sent(arrivals, schedule.ticks))

        shape = schedule.ticks, schedule.stages
        turns = Turn(*(np.zeros(shape, np.int32) for _ in range(7)), got_sent=np.zeros((*shape, len(ways)), np.int32))
        for nobody in (turns.got_entered, turns.got_loss, turns.got_sent):
            nobody[:] = depth
        enters, leaves, returns = np.full((3, schedule.ticks), -1, np.int32)
        for (stage, op), tick in tick_of.items():
            at, forward = (tick, stage), (stage, op._replace(kind="F"))
            turns.kind[at], turns.chunk[at], turns.kept[at] = KINDS.index(op.kind), op.chunk, kept[forward]
            turns.takes[at], turns.put_off[at] = arrived.get((stage, op), 0), put_off.get(forward, 0)
            if op.kind == "B" and stage == op.chunk == 0:
                returns[tick] = op.microbatch
        for each in arrivals:
            (stage, op), tick = each.target, each.after
            at, slot = (tick, stage), arrived[each.target]
            if each.way:
                turns.got_sent[at][exchange_of(each.way, exchanges[tick], ways)] = slot
            elif op.kind == "B":
                turns.got_loss[at], leaves[tick] = slot, op.microbatch
            elif tick >= 0:
                turns.got_entered[at], enters[tick] = slot, op.microbatch
        at_ends, ends = together(enters, leaves, returns)
        shared = Shared(at_ends, enters, leaves, returns, exchanges)
        return cls(turns, shared, Depths(depth, kept_depth, put_off_depth), ends, ways)

    @property
    def exchanges(self) -> int:
        """In all ticks."""
        return int((self.shared.ways >= 0).sum())


class Arrival(NamedTuple):
    """What an operation works on: what made it, the operation, and the tick at whose end it arrives.

    What is embedded arrives at the end of the tick before; for the first tick it is there from the start, in slot 0.
    """

    source: Key
    target: Key
    after: int

    @classmethod
    def of(cls, source: Key, target: Key, tick_of: Mapping[Key, int]) -> "Arrival":
        """Of an operation and what made its input: itself, for what is embedded."""
        return cls(source, target, tick_of[target] - 1 if source == target else tick_of[source])

    @property
    def way(self) -> Way | None:
        """From which stage to which it is sent; None if it comes from the embedding or from the loss."""
        (source, made), (target, op) = self.source, self.target
        return (source, target) if self.source != self.target and made.kind == op.kind else None


def together(*microbatches: np.ndarray) -> tuple[np.ndarray, tuple[Ends, ...]]:
    """Which of what is done at both ends at once is done in each tick [ticks], of which microbatch enters and so on."""
    each = [tuple(bool(m >= 0) for m in tick) for tick in zip(*microbatches, strict=True)]
    ends: Any = sorted(set(filter(any, each)))
    return np.array([ends.index(tick) if any(tick) else -1 for tick in each], np.int32), tuple(ends)


def sent(arrivals: Iterable[Arrival], ticks: int) -> list[tuple[set[Way], set[Way]]]:
    """What stages send on, and what they send back, at each tick's end."""
    ways: list[tuple[set[Way], set[Way]]] = [(set(), set()) for _ in range(ticks)]
    for each in arrivals:
        if each.way:
            ways[each.after][each.target[1].kind == "B"].add(each.way)
    return ways


def exchanged(sent: Sequence[Sequence[set[Way]]]) -> tuple[np.ndarray, tuple[tuple[Ways, ...], ...]]:
    """The exchanges at each tick's end [ticks, exchanges], and in which ways they go, of what is sent on and back then.

    One exchange does where no stage gets both. Ways that agree as far as they go are one: it carries what nobody reads.

    >>> exchanged([[{(0, 1)}, set()], [{(1, 2)}, {(1, 0)}], [{(0, 1)}, {(2, 1)}]])[1]
    ((((0, 1), (1, 2)),), (((1, 0), (2, 1)),))
    """
    rounds = [[on | back] if one_each(on | back) else [on, back] for on, back in sent]
    columns = max(map(len, rounds), default=0)
    found: list[list[set[Way]]] = [[] for _ in range(columns)]
    chosen = np.full((len(rounds), columns), -1, np.int32)
    for tick, each in enumerate(rounds):
        for column, pairs in enumerate(each):
            if not pairs:
                continue
            fits = (i for i, ways in enumerate(found[column]) if one_each(ways | pairs))
            index = next(fits, len(found[column]))
            if index == len(found[column]):
                found[column].append(set())
            found[column][index] |= pairs
            chosen[tick, column] = index
    return chosen, tuple(tuple(tuple(sorted(ways)) for ways in column) for column in found)


def exchange_of(way: Way, chosen: Sequence[int], ways: Sequence[Sequence[Ways]]) -> int:
    """In which of a tick's exchanges something goes this way."""
    return next(exchange for exchange, index in enumerate(chosen) if index >= 0 and way in ways[exchange][index])


def one_each(pairs: set[Way]) -> bool:
    """Whether no stage sends twice, and none gets twice."""
    return all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))


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
