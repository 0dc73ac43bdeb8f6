"""Timetable of a pipeline schedule: each stage's layers, and its work and buffer slots at each tick.

Inputs and residuals wait in buffers with the fewest slots that the schedule allows: a slot is reused as soon as its
content has been used. The buffer of arrivals has one extra slot, the last, that no stage reads.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from strategies.config import PipelineSchedule
from strategies.pipelining.orders import stage_schedule
from strategies.pipelining.schedules import Kind, Op, PassTimes, Schedule

KINDS: tuple[Kind | None, ...] = (None, "F", "B", "W")
"""Kinds of turns by their number in the arrays; None is idle."""

Key = tuple[int, Op]
Lifetimes = Mapping[Key, tuple[int, int]]


class Turn(NamedTuple):
    """What one stage does in one tick. Fields are int32 arrays [ticks, stages], or one entry of each.

    Attributes:
        kind: the index in `KINDS`.
        chunk: the stage's chunk that runs.
        operand_slot: slot of its operand: the input, or in the backward pass the output gradient.
        residual_slot: slot of its residuals, and then of what the second half of its backward pass needs.
        embed_dst, loss_grad_dst: slots for arrivals from the embedding and the loss, at the end of the tick.
        recv_dst: slots for arrivals from other stages [ticks, stages, exchanges].
    """

    kind: Any
    chunk: Any
    operand_slot: Any
    residual_slot: Any
    embed_dst: Any
    loss_grad_dst: Any
    recv_dst: Any


class Shared(NamedTuple):
    """What all stages do together at the end of a tick. Fields are arrays [ticks], or one entry of each; -1 is none.

    Attributes:
        ends: the index in `Ticks.ends`.
        enters: the microbatch to embed for the next tick.
        leaves: the microbatch whose loss is computed.
        returns: the microbatch whose gradient has come back to the embedding.
        edges: the index in `Ticks.edges` of each exchange [ticks, exchanges].
    """

    ends: Any
    enters: Any
    leaves: Any
    returns: Any
    edges: Any


class Depths(NamedTuple):
    """Number of slots of each buffer, on the stage that needs the most."""

    arrived: int
    kept: int


Ends = tuple[bool, bool, bool]
"""Whether a microbatch enters, one leaves, and one returns."""
Edge = tuple[int, int]
"""(source stage, target stage)."""
Edges = tuple[Edge, ...]
"""The pairs of one permute: each stage sends at most once and receives at most once."""


@dataclass(frozen=True)
class Ticks:
    """A schedule tick by tick.

    Attributes:
        ends: the distinct combinations of work on embedding and head.
        edges: for each exchange at the end of a tick, the distinct permutes.
    """

    turns: Turn
    shared: Shared
    depths: Depths
    ends: tuple[Ends, ...]
    edges: tuple[tuple[Edges, ...], ...]

    @classmethod
    def of(cls, schedule: Schedule) -> "Ticks":
        """Compute the ticks and slots of a schedule's operations."""
        tick_of = {(stage, op): tick for stage, row in enumerate(schedule.table) for tick, op in enumerate(row) if op}
        last: Kind = "W" if schedule.splits_backward else "B"

        arrivals = [Arrival.of(schedule.needs(*key), key, tick_of) for key in tick_of if key[1].kind != "W"]
        # What arrives at the end of a tick may reuse the slot of what was used in that tick.
        arrived, depth = slots({each.target: (each.after, tick_of[each.target]) for each in arrivals})
        passes = [(stage, op) for stage, op in tick_of if op.kind == "F"]
        kept, kept_depth = slots(
            {(stage, op): (tick_of[stage, op], tick_of[stage, op._replace(kind=last)] + 1) for stage, op in passes}
        )
        exchanges, edges = group_exchanges(sent_edges(arrivals, schedule.ticks), schedule.stages)

        shape = schedule.ticks, schedule.stages
        turns = Turn(*(np.zeros(shape, np.int32) for _ in range(6)), recv_dst=np.zeros((*shape, len(edges)), np.int32))
        for nobody in (turns.embed_dst, turns.loss_grad_dst, turns.recv_dst):
            nobody[:] = depth
        enters, leaves, returns = np.full((3, schedule.ticks), -1, np.int32)
        for (stage, op), tick in tick_of.items():
            at, forward = (tick, stage), (stage, op._replace(kind="F"))
            turns.kind[at], turns.chunk[at], turns.residual_slot[at] = KINDS.index(op.kind), op.chunk, kept[forward]
            turns.operand_slot[at] = arrived.get((stage, op), 0)
            if op.kind == "B" and stage == op.chunk == 0:
                returns[tick] = op.microbatch
        for each in arrivals:
            (stage, op), tick = each.target, each.after
            at, slot = (tick, stage), arrived[each.target]
            if each.edge:
                turns.recv_dst[at][exchange_of(each.edge, exchanges[tick], edges)] = slot
            elif op.kind == "B":
                turns.loss_grad_dst[at], leaves[tick] = slot, op.microbatch
            elif tick >= 0:
                turns.embed_dst[at], enters[tick] = slot, op.microbatch
        at_ends, ends = together(enters, leaves, returns)
        shared = Shared(at_ends, enters, leaves, returns, exchanges)
        return cls(turns, shared, Depths(depth, kept_depth), ends, edges)

    @cached_property
    def sends(self) -> np.ndarray:
        """Number of exchanges between stages at the end of each tick [ticks]."""
        found = np.zeros(len(self.shared.edges), int)
        for column, different in zip(self.shared.edges.T, self.edges, strict=True):
            for index in (i for i, edges in enumerate(different) if not is_local(edges)):
                found += column == index
        return found

    @property
    def exchanges(self) -> int:
        """Number of exchanges between stages in all ticks."""
        return int(self.sends.sum())


class Arrival(NamedTuple):
    """The operand of an operation arrives: source operation, target operation, and the tick at whose end it arrives.

    An embedded microbatch arrives at the end of the tick before its first use. The first tick's is in slot 0 from the
    start.
    """

    source: Key
    target: Key
    after: int

    @classmethod
    def of(cls, source: Key, target: Key, tick_of: Mapping[Key, int]) -> "Arrival":
        """The arrival at `target` from `source`, which is `target` itself if the operand comes from the embedding."""
        return cls(source, target, tick_of[target] - 1 if source == target else tick_of[source])

    @property
    def edge(self) -> Edge | None:
        """Source and target stage; None if it comes from embedding or loss."""
        (source, made), (target, op) = self.source, self.target
        return (source, target) if self.source != self.target and made.kind == op.kind else None


def together(*microbatches: np.ndarray) -> tuple[np.ndarray, tuple[Ends, ...]]:
    """For each tick, the index of its combination of `Ends`, or -1; and the distinct combinations.

    `microbatches` are those that enter, leave and return in each tick, -1 for none.
    """
    each = [tuple(bool(m >= 0) for m in tick) for tick in zip(*microbatches, strict=True)]
    ends: Any = sorted(set(filter(any, each)))
    return np.array([ends.index(tick) if any(tick) else -1 for tick in each], np.int32), tuple(ends)


def sent_edges(arrivals: Iterable[Arrival], ticks: int) -> list[set[Edge]]:
    """For each tick, the edges of its sends."""
    edges: list[set[Edge]] = [set() for _ in range(ticks)]
    for each in arrivals:
        if each.edge:
            edges[each.after].add(each.edge)
    return edges


def group_exchanges(sent: Sequence[set[Edge]], stages: int) -> tuple[np.ndarray, tuple[tuple[Edges, ...], ...]]:
    """For each tick the indices of its exchanges [ticks, exchanges], -1 for none; and their permutes.

    The sends of a tick are one exchange, or two if a stage would receive from both neighbours: those to the next stage,
    and the others. Compatible permutes are merged, for fewer branches; a stage may then send what no stage reads. What
    stages hand over to themselves alone, at the turn of a V, is not merged with what they send.

    >>> group_exchanges([{(0, 1)}, {(1, 2), (1, 0)}, {(0, 1), (2, 1)}], 3)[1]
    ((((0, 1), (1, 2)),), (((1, 0), (2, 1)),))
    """
    rounds = []
    for edges in sent:
        onward = {(source, target) for source, target in edges if (source + 1) % stages == target}
        rounds.append([edges] if one_each(edges) else [onward, edges - onward])
    columns = max(map(len, rounds), default=0)
    found: list[list[set[Edge]]] = [[] for _ in range(columns)]
    chosen = np.full((len(rounds), columns), -1, np.int32)
    for tick, each in enumerate(rounds):
        for column, pairs in enumerate(each):
            if not pairs:
                continue
            alike = (i for i, edges in enumerate(found[column]) if is_local(edges) == is_local(pairs))
            fits = (i for i in alike if one_each(found[column][i] | pairs))
            index = next(fits, len(found[column]))
            if index == len(found[column]):
                found[column].append(set())
            found[column][index] |= pairs
            chosen[tick, column] = index
    return chosen, tuple(tuple(tuple(sorted(edges)) for edges in column) for column in found)


def exchange_of(edge: Edge, chosen: Sequence[int], edges: Sequence[Sequence[Edges]]) -> int:
    """The exchange of a tick that contains an edge."""
    return next(exchange for exchange, index in enumerate(chosen) if index >= 0 and edge in edges[exchange][index])


def is_local(edges: Iterable[Edge]) -> bool:
    """Whether no stage sends to another."""
    return all(source == target for source, target in edges)


def one_each(pairs: set[Edge]) -> bool:
    """Whether each stage sends at most once and receives at most once."""
    return all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))


def slots(lifetimes: Lifetimes) -> tuple[dict[Key, int], int]:
    """Assign a slot to each lifetime (start tick, end tick), per stage; return the slots and their number.

    >>> slots({(0, Op("F", 0)): (0, 2), (0, Op("F", 1)): (1, 3), (0, Op("F", 2)): (2, 4)})[1]
    2
    """
    assigned: dict[Key, int] = {}
    slots_of: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
    for key, (start, end) in sorted(lifetimes.items(), key=lambda item: item[1]):
        free, busy = slots_of.setdefault(key[0], ([], []))  # heaps: free slots, and (end tick, slot)
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        assigned[key] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, assigned[key]))
    return assigned, max((len(free) + len(busy) for free, busy in slots_of.values()), default=0)


@dataclass(frozen=True)
class Order:
    """A schedule, with cached results that are slow to compute."""

    schedule: Schedule

    @cached_property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return Ticks.of(self.schedule)

    @cached_property
    def _bubble(self) -> Callable[[PassTimes], float]:
        return cache(self.schedule.bubble)

    def bubble(self, costs: PassTimes) -> float:
        """The fraction of time that a stage is idle (`Schedule.bubble`), cached by the costs' proportions."""
        return self._bubble(PassTimes(*(cost / sum(costs) for cost in costs)))


@cache
def order_of(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Order:
    """The `Order` of a schedule, cached for all plans that share it. Arguments are as for `stage_schedule`."""
    return Order(stage_schedule(layers, stages, microbatches, schedule, chunks))
