"""Timetable of a pipeline schedule: each stage's layers, and its work and buffer slots at each tick.

Inputs and residuals wait in buffers with the fewest slots that the schedule allows: a slot is reused as soon as its
content has been used. The buffer of arrivals has one extra slot, the last, that no stage reads.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from strategies.config import PipelineSchedule
from strategies.pipelining.orders import stage_schedule
from strategies.pipelining.schedules import PassKind, Schedule

KINDS = ("", "F", "B", "FB", "W")
"""Kinds of a turn's operations, by their number in the arrays; the number of a pair is the sum of both."""


class Pass(NamedTuple):
    """An operation of one stage in one tick. Fields are int32 arrays [ticks, stages], or one entry of each.

    Attributes:
        chunk: the stage's chunk that runs.
        operand_slot: slot of its operand: the input, or in the backward pass the output gradient.
        residual_slot: slot of its residuals, and then of what the second half of its backward pass needs.
    """

    chunk: Any
    operand_slot: Any
    residual_slot: Any


class Turn(NamedTuple):
    """What one stage does in one tick. Fields are int32 arrays [ticks, stages], or one entry of each.

    Attributes:
        kind: the index in `KINDS`.
        forward: the forward pass; without pairs the only operation.
        backward: the backward pass, or weight gradients; without pairs the same as `forward`.
        embed_dst, loss_grad_dst: slots for arrivals from the embedding and the loss, at the end of the tick.
        recv_dst: slots for arrivals from other stages [ticks, stages, exchanges].
    """

    kind: Any
    forward: Pass
    backward: Pass
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
        sent: for each exchange, the index in `Carry.made` (executor.py) of the array that it sends.
    """

    turns: Turn
    shared: Shared
    depths: Depths
    ends: tuple[Ends, ...]
    edges: tuple[tuple[Edges, ...], ...]
    sent: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> "Ticks":
        """Compute the ticks and slots of a schedule's operations."""
        at, parts = ticks_of(schedule), range(schedule.stages * schedule.chunks)
        stage_of = [schedule.stage_of(part) for part in parts]
        stages, chunks = np.array(stage_of)[:, None], np.array(parts)[:, None] // schedule.stages

        # At the end of which tick the operand arrives. An embedded microbatch arrives before the tick of its first use,
        # the first one in slot 0 from the start.
        after_F, after_B = np.vstack([at["F"][:1] - 1, at["F"][:-1]]), np.vstack([at["B"][1:], at["F"][-1:]])
        # What arrives at the end of a tick may reuse the slot of what was used in that tick.
        arrived, depth = slots(np.vstack([stages] * 2), np.vstack([after_F, after_B]), np.vstack([at["F"], at["B"]]))
        slots_F, slots_B = np.split(arrived, 2)
        kept, kept_depth = slots(stages, at["F"], at["W" if schedule.splits_backward else "B"] + 1)
        onward = [*map(Sends, pairwise(stage_of), after_F[1:], slots_F[1:])]
        back = [*map(Sends, pairwise(reversed(stage_of)), after_B[-2::-1], slots_B[-2::-1])]

        shape = schedule.ticks, schedule.stages
        results = [onward, back] if schedule.pairs else [onward + back]
        grouped = [exchanged(sends, np.full(shape, depth, np.int32)) for sends in results]
        exchanges, recv_dst = (np.concatenate([each[i] for each in grouped], -1) for i in (0, 1))
        edges = tuple(different for _, _, found in grouped for different in found)
        sent = tuple(result for result, (_, _, found) in enumerate(grouped) for _ in found)

        forward = Pass(*np.zeros((3, *shape), np.int32))
        backward = Pass(*np.zeros((3, *shape), np.int32)) if schedule.pairs else forward
        embed_dst, loss_grad_dst = np.full((2, *shape), depth, np.int32)
        turns = Turn(np.zeros(shape, np.int32), forward, backward, embed_dst, loss_grad_dst, recv_dst)
        for kind, ticks in at.items():
            cells, taken = (ticks, stages), forward if kind == "F" else backward
            turns.kind[cells] += KINDS.index(kind)
            taken.chunk[cells], taken.residual_slot[cells] = chunks, kept
            taken.operand_slot[cells] = {"F": slots_F, "B": slots_B, "W": 0}[kind]
        enters, leaves, returns = np.full((3, schedule.ticks), -1, np.int32)
        microbatches = np.arange(schedule.microbatches)
        embedded = after_F[0] >= 0
        embeds = after_F[0, embedded]
        enters[embeds], turns.embed_dst[embeds, 0] = microbatches[embedded], slots_F[0, embedded]
        leaves[at["F"][-1]], turns.loss_grad_dst[at["F"][-1], stage_of[-1]] = microbatches, slots_B[-1]
        returns[at["B"][0]] = microbatches
        at_ends, ends = together(enters, leaves, returns)
        shared = Shared(at_ends, enters, leaves, returns, exchanges)
        return cls(turns, shared, Depths(depth, kept_depth), ends, edges, sent)

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


def ticks_of(schedule: Schedule) -> Mapping[PassKind, np.ndarray]:
    """By kind of pass, its tick for each part of the model and each microbatch [parts, microbatches]."""
    shape = schedule.stages * schedule.chunks, schedule.microbatches
    kinds: tuple[PassKind, ...] = ("F", "B", "W") if schedule.splits_backward else ("F", "B")
    found: dict[PassKind, np.ndarray] = {kind: np.zeros(shape, int) for kind in kinds}
    for stage, row in enumerate(schedule.table):
        parts = [schedule.part(stage, chunk) for chunk in range(schedule.chunks)]
        for tick, cell in enumerate(row):
            for op in cell:
                found[op.kind][parts[op.chunk], op.microbatch] = tick
    return found


class Sends(NamedTuple):
    """What one part of the model sends to another for each microbatch.

    Attributes:
        edge: their stages.
        ticks: the ticks at whose end it is sent [microbatches].
        slots: where it arrives [microbatches].
    """

    edge: Edge
    ticks: np.ndarray
    slots: np.ndarray


def together(*microbatches: np.ndarray) -> tuple[np.ndarray, tuple[Ends, ...]]:
    """For each tick, the index of its combination of `Ends`, or -1; and the distinct combinations.

    `microbatches` are those that enter, leave and return in each tick, -1 for none.
    """
    each = [tuple(bool(m >= 0) for m in tick) for tick in zip(*microbatches, strict=True)]
    ends: Any = sorted(set(filter(any, each)))
    return np.array([ends.index(tick) if any(tick) else -1 for tick in each], np.int32), tuple(ends)


def exchanged(
    sends: Sequence[Sends], nobody: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[tuple[Edges, ...], ...]]:
    """The exchanges that send something: by tick, as `group_exchanges`; the slots where it arrives [ticks, stages,
    exchanges]; and the permutes. `nobody` has for each tick and stage the slot that no stage reads.
    """
    ticks, stages = nobody.shape
    edges_of: list[set[Edge]] = [set() for _ in range(ticks)]
    for each in sends:
        for tick in each.ticks.tolist():
            edges_of[tick].add(each.edge)
    chosen, edges = group_exchanges(edges_of, stages)
    recv_dst = np.repeat(nobody[..., None], len(edges), -1)
    for each in sends:
        left = np.ones(len(each.ticks), bool)
        for exchange, different in enumerate(edges):  # the first one that contains the edge
            contains = np.array([*(each.edge in one for one in different), False])  # the last one for no exchange
            sent = left & contains[chosen[each.ticks, exchange]]
            recv_dst[each.ticks[sent], each.edge[1], exchange] = each.slots[sent]
            left &= ~sent
    return chosen, recv_dst, edges


def group_exchanges(sent: Sequence[set[Edge]], stages: int) -> tuple[np.ndarray, tuple[tuple[Edges, ...], ...]]:
    """For each tick the indices of its exchanges [ticks, exchanges], -1 for none; and their permutes.

    The sends of a tick are one exchange, or two if a stage would receive from both neighbours: those to the next stage,
    and the others. Compatible permutes are merged, for fewer branches; a stage may then send what no stage reads. What
    stages hand over to themselves alone, at the turn of a V, is not merged with what they send.

    >>> group_exchanges([{(0, 1)}, {(1, 2), (1, 0)}, {(0, 1), (2, 1)}], 3)[1]
    ((((0, 1), (1, 2)),), (((1, 0), (2, 1)),))
    """
    onward = {edge for edges in sent for edge in edges if (edge[0] + 1) % stages == edge[1]}
    rounds = {frozenset(edges): [edges] if one_each(edges) else [edges & onward, edges - onward] for edges in sent}
    columns = max(map(len, rounds.values()), default=0)
    found: list[list[set[Edge]]] = [[] for _ in range(columns)]
    rows: dict[frozenset[Edge], list[int]] = {}
    for edges, each in rounds.items():
        rows[edges] = [-1] * columns
        for column, pairs in ((column, pairs) for column, pairs in enumerate(each) if pairs):
            alike = (i for i, others in enumerate(found[column]) if is_local(others) == is_local(pairs))
            index = next((i for i in alike if one_each(found[column][i] | pairs)), len(found[column]))
            if index == len(found[column]):
                found[column].append(set())
            found[column][index] |= pairs
            rows[edges][column] = index
    chosen = np.array([rows[frozenset(edges)] for edges in sent], np.int32).reshape(len(sent), columns)
    return chosen, tuple(tuple(tuple(sorted(edges)) for edges in column) for column in found)


def is_local(edges: Iterable[Edge]) -> bool:
    """Whether no stage sends to another."""
    return all(source == target for source, target in edges)


def one_each(pairs: set[Edge]) -> bool:
    """Whether each stage sends at most once and receives at most once."""
    return all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))


def slots(stages: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """Assign a slot to each lifetime, per stage, from the tick where it begins to that where it ends; return the slots
    and their number. `stages` broadcasts to the others' shape.

    >>> slots(np.array([0]), np.array([0, 1, 2]), np.array([2, 3, 4]))
    (array([0, 1, 0]), 2)
    """
    each = (np.broadcast_to(each, begins.shape).ravel().tolist() for each in (stages, begins, ends))
    assigned = [0] * begins.size
    slots_of: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
    for stage, begin, end, index in sorted(zip(*each, range(begins.size), strict=True)):
        free, busy = slots_of.setdefault(stage, ([], []))  # heaps: free slots, and (end tick, slot)
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        assigned[index] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, assigned[index]))
    number = max(len(free) + len(busy) for free, busy in slots_of.values())
    return np.array(assigned).reshape(begins.shape), number


@dataclass(frozen=True)
class Order:
    """A schedule, with its ticks, which are slow to compute."""

    schedule: Schedule

    @cached_property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return Ticks.of(self.schedule)


@cache
def order_of(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Order:
    """The `Order` of a schedule, cached for all plans that share it. Arguments are as for `stage_schedule`."""
    return Order(stage_schedule(layers, stages, microbatches, schedule, chunks))
