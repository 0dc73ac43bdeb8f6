"""Pipeline schedules as tables: what each stage does at each tick. Plain Python; executor.py runs them.

A schedule orders each stage's operations (orders.py). An operation takes one tick. It starts as soon as the previous
operation of its stage and the operation whose result it needs have ended, and with `in_turn` in a tick for its kind.
With `pairs` a backward pass can share the tick of the forward pass before it. A forward pass needs the forward pass of
the part of the model before its own, and a backward pass the backward pass of the part after. With several chunks a
stage holds several parts, and a microbatch passes through all stages once per chunk.

    meshmark schedule 1f1b --stages 4 --microbatches 8
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, get_args

PassKind = Literal["F", "B", "W"]
"""F: forward pass. B: backward pass, or only its input gradients if there are W. W: weight gradients."""


class Op(NamedTuple):
    """A pass of a microbatch through a chunk."""

    kind: PassKind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        """Its kind and microbatch, with one prime per preceding chunk.

        >>> str(Op("F", 2, chunk=1))
        "F2'"
        """
        return f"{self.kind}{self.microbatch}" + "'" * self.chunk


class PassTimes(NamedTuple):
    """Durations of a whole stage's passes, in any unit: forward, input gradients, weight gradients."""

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0


Orders = tuple[tuple[Op, ...], ...]
"""Each stage's operations in order."""
EQUAL = PassTimes()


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule. Its methods raise ValueError if operations wait for each other.

    Attributes:
        chunks: number of model parts per stage.
        make_orders: makes `orders`, which is slow for many stages and microbatches.
        splits_backward: whether weight gradients are a separate operation.
        in_turn: whether ticks are for one kind of operation each, in turn. In a program whose stages wait for each
            other at the end of a tick, no stage then waits for an operation of another kind.
        pairs: whether a tick may have a forward pass, and then a backward pass of another microbatch. Neither needs the
            other's result.
        v_shaped: whether every second chunk is assigned to stages from the last to the first, so that the first stage
            has both ends of the model.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    make_orders: Callable[[], Orders] = field(compare=False, repr=False)
    splits_backward: bool = False
    in_turn: bool = False
    pairs: bool = False
    v_shaped: bool = False

    @cached_property
    def orders(self) -> Orders:
        """Each stage's operations in order."""
        return self.make_orders()

    def needs(self, stage: int, op: Op) -> tuple[int, Op]:
        """The stage and the operation whose result this operation needs; for a microbatch's first, itself."""
        kind, m, chunk = op
        if kind == "W":
            return stage, Op("B", m, chunk)
        part = self.part(stage, chunk) + (1 if kind == "B" else -1)
        if part == self.chunks * self.stages:
            return stage, Op("F", m, chunk)
        if part < 0:
            return stage, op
        return self.stage_of(part), Op(kind, m, part // self.stages)

    def part(self, stage: int, chunk: int) -> int:
        """Which part of the model a stage's chunk is."""
        return self._parts[chunk][stage]

    def stage_of(self, part: int) -> int:
        """The stage that has a part of the model."""
        return self._stages[part]

    @cached_property
    def _parts(self) -> tuple[tuple[int, ...], ...]:
        """The part that is each chunk [chunks][stages]."""
        chunks = range(self.chunks)
        return tuple(tuple(chunk * self.stages + place for place in self.route(chunk)) for chunk in chunks)

    @cached_property
    def _stages(self) -> tuple[int, ...]:
        """The stage that has each part."""
        return tuple(stage for chunk in range(self.chunks) for stage in self.route(chunk))

    def route(self, chunk: int) -> range:
        """The stages in the order in which a microbatch passes through a chunk; backwards, it is its own inverse."""
        return range(self.stages)[::-1] if self.v_shaped and chunk % 2 else range(self.stages)

    @property
    def last_stage(self) -> int:
        """The stage that has the last part of the model."""
        return self.stage_of(self.stages * self.chunks - 1)

    def starts(
        self,
        duration: Callable[[int, Op], float],
        begin: Callable[[Op, float, float], float] = lambda op, free_at, needed: max(free_at, needed),
    ) -> dict[tuple[int, Op], float]:
        """Start time of each operation if stages wait only for results that they need. `duration` is in any unit.

        `begin` maps an operation, the end of the stage's previous one, and the end of the one that it needs, to its
        start.
        """
        starts: dict[tuple[int, Op], float] = {}
        free_at, ends = [0.0] * self.stages, [0.0]
        for stage, op, need in self.sequence:
            start = starts[stage, op] = begin(op, free_at[stage], ends[need])
            free_at[stage] = start + duration(stage, op)
            ends.append(free_at[stage])
        return starts

    @cached_property
    def sequence(self) -> tuple[tuple[int, Op, int], ...]:
        """(stage, operation, number of the operation that it needs; 0: none), in execution order, numbered from 1."""
        found: list[tuple[int, Op, int]] = []
        numbers: dict[tuple[int, Op], int] = {}
        remaining = [list(reversed(order)) for order in self.orders]
        waiting: dict[tuple[int, Op], int] = {}
        ready = list(range(self.stages))
        while ready:
            stage = ready.pop()
            while ops := remaining[stage]:
                key, need = (stage, ops[-1]), self.needs(stage, ops[-1])
                if need not in numbers and need != key:
                    waiting[need] = stage
                    break
                found.append((*key, numbers.get(need, 0)))
                numbers[key] = len(found)
                ops.pop()
                if key in waiting:
                    ready.append(waiting.pop(key))
        if stuck := [ops[-1] for ops in remaining if ops]:
            raise ValueError(f"{self.name}: {stuck} wait for each other")
        return tuple(found)

    @cached_property
    def table(self) -> tuple[tuple[tuple[Op, ...], ...], ...]:
        """Each stage's operations at each tick [stages][ticks]: none, one, or a forward and a backward pass."""
        kinds = "FBW" if self.splits_backward else "FB"
        turns = len(kinds) if self.pairs else 1

        def begin(op: Op, free_at: float, needed: float) -> float:
            ready = max(free_at, math.ceil(needed / turns) * turns)  # results are sent at the end of a tick
            return ready + (kinds.index(op.kind) - ready) % len(kinds) if self.in_turn or self.pairs else ready

        starts = self.starts(lambda stage, op: 1, begin)
        ticks = {start: tick for tick, start in enumerate(sorted({start // turns for start in starts.values()}))}
        rows: list[list[tuple[Op, ...]]] = [[()] * len(ticks) for _ in range(self.stages)]
        for (stage, op), start in starts.items():
            rows[stage][ticks[start // turns]] += (op,)
        return tuple(map(tuple, rows))

    @property
    def ticks(self) -> int:
        """Number of ticks until the last operation has ended."""
        return len(self.table[0])

    @cached_property
    def kinds_at_once(self) -> Mapping[frozenset[tuple[PassKind, ...]], int]:
        """The kinds of operations of each stage in the same tick -> number of such ticks."""
        columns = zip(*self.table, strict=True)
        return Counter(frozenset(tuple(op.kind for op in cell) for cell in column if cell) for column in columns)

    def lockstep(self, costs: PassTimes = EQUAL) -> float:
        """Time from the first start to the last end, if each tick lasts as long as on the busiest stage."""
        seconds: Mapping[PassKind, float] = {kind: self.duration(Op(kind, 0), costs) for kind in get_args(PassKind)}

        def longest(cells: frozenset[tuple[PassKind, ...]]) -> float:
            return max(sum(seconds[kind] for kind in kinds) for kinds in cells)

        return sum(ticks * longest(cells) for cells, ticks in self.kinds_at_once.items())

    def duration(self, op: Op, costs: PassTimes = EQUAL) -> float:
        """Duration of one operation on one chunk."""
        backward = costs.inputs if self.splits_backward else costs.inputs + costs.weights
        return {"F": costs.forward, "B": backward, "W": costs.weights}[op.kind] / self.chunks

    def makespan(self, costs: PassTimes = EQUAL) -> float:
        """Time from the first start to the last end, if stages wait only for results that they need.

        Without separate weight gradients and without a V the last stage does not pause between the first forward passes
        and the last backward passes of one chunk on each other stage.
        """
        if not self.splits_backward and not self.v_shaped:
            return (self.microbatches + (self.stages - 1) / self.chunks) * sum(costs)
        starts = self.starts(lambda stage, op: self.duration(op, costs))
        return max(start + self.duration(op, costs) for (_, op), start in starts.items())

    def bubble(self, costs: PassTimes = EQUAL) -> float:
        """The fraction of time that a stage is idle, if stages wait only for results that they need.

        It is cached by the costs' proportions.
        """
        return self._bubble(PassTimes(*(cost / sum(costs) for cost in costs)))

    @cached_property
    def _bubble(self) -> Callable[[PassTimes], float]:
        return cache(lambda costs: 1 - self.microbatches * sum(costs) / self.makespan(costs))

    def lockstep_bubble(self, costs: PassTimes = EQUAL) -> float:
        """The fraction of time lost if each tick lasts as long as on the busiest stage."""
        return 1 - self.makespan(costs) / self.lockstep(costs)

    def lost(self, costs: PassTimes = EQUAL) -> float:
        """The fraction of time that a stage is idle in lockstep: `bubble` and `lockstep_bubble` together."""
        return 1 - self.microbatches * sum(costs) / self.lockstep(costs)

    def in_flight(self, stage: int) -> int:
        """Maximum number of microbatches, once per chunk, whose forward but not backward pass is complete on
        a stage.
        """
        last: PassKind = "W" if self.splits_backward else "B"
        peak = current = 0
        for op in self.orders[stage]:
            current += op.kind == "F"
            peak = max(peak, current)
            current -= op.kind == last
        return peak

    @property
    def most_in_flight(self) -> float:
        """The largest number of microbatches in flight on a stage; those of one of its chunks are a part of one."""
        return max(map(self.in_flight, range(self.stages))) / self.chunks

    def as_dict(self) -> dict[str, Any]:
        """JSON values: name, chunks per stage, and each stage's list of operations at each tick."""
        rows = [[[op._asdict() for op in cell] for cell in row] for row in self.table]
        return {"schedule": self.name, "chunks": self.chunks, "stages": rows}

    def __str__(self) -> str:
        """The table: a line for each stage, a column for each tick. `&` joins a pair.

        >>> from strategies.pipelining.orders import one_f_one_b
        >>> print(one_f_one_b(2, 3))
        F0 F1 .. B0 F2 B1 .. B2
        .. F0 B0 F1 B1 F2 B2 ..
        """
        rows = [["&".join(map(str, cell)) or ".." for cell in row] for row in self.table]
        width = max(len(cell) for row in rows for cell in row)
        return "\n".join(" ".join(cell.ljust(width, "." if cell == ".." else " ") for cell in row) for row in rows)
