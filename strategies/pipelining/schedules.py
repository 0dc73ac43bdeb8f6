"""Pipeline schedules as tables: what each stage does at each tick. Plain Python; executor.py runs them.

A schedule orders each stage's operations. An operation takes one tick. It starts as soon as the previous operation of
its stage and the operation whose result it needs have ended. A forward pass needs the forward pass of the previous
stage, and a backward pass needs the backward pass of the next stage. With several chunks a stage holds several parts of
the model, and a microbatch passes through all stages once per chunk.

    meshmark schedule 1f1b --stages 4 --microbatches 8
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from strategies.infeasible import Infeasible, WrongSize

Kind = Literal["F", "B", "W"]
"""F: forward pass. B: backward pass, or only its input gradients if there are W. W: weight gradients."""


class Op(NamedTuple):
    """What a stage does in one tick."""

    kind: Kind
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


MOST_CELLS = 300_000
"""Largest table of a schedule, in pairs of cells (a forward and a backward pass). Making it takes a few seconds."""
EQUAL = PassTimes()


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule. Its methods raise ValueError if operations wait for each other.

    Attributes:
        chunks: number of model parts per stage.
        make_orders: makes `orders`, which is slow for many stages and microbatches.
        splits_backward: whether weight gradients are a separate operation.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    make_orders: Callable[[], tuple[tuple[Op, ...], ...]] = field(compare=False, repr=False)
    splits_backward: bool = False

    @cached_property
    def orders(self) -> tuple[tuple[Op, ...], ...]:
        """Each stage's operations in order."""
        return self.make_orders()

    def needs(self, stage: int, op: Op) -> tuple[int, Op]:
        """The stage and the operation whose result this operation needs; for a microbatch's first, itself."""
        kind, m, chunk = op
        if kind == "W":
            return stage, Op("B", m, chunk)
        step = 1 if kind == "B" else -1
        part = chunk * self.stages + stage + step  # parts of the model are assigned to stages round-robin
        if part == self.chunks * self.stages:
            return stage, Op("F", m, chunk)
        return (stage, op) if part < 0 else (part % self.stages, Op(kind, m, part // self.stages))

    def starts(self, duration: Callable[[int, Op], float]) -> dict[tuple[int, Op], float]:
        """Start time of each operation if stages wait only for results that they need. `duration` is in any unit."""
        starts: dict[tuple[int, Op], float] = {}
        free_at, ends = [0.0] * self.stages, [0.0]
        for stage, op, need in self.sequence:
            start = starts[stage, op] = max(free_at[stage], ends[need])
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
    def table(self) -> tuple[tuple[Op | None, ...], ...]:
        """Each stage's operation at each tick [stages][ticks]; None if idle."""
        ticks = {key: int(start) for key, start in self.starts(lambda stage, op: 1).items()}
        rows: list[list[Op | None]] = [[None] * (1 + max(ticks.values())) for _ in range(self.stages)]
        for (stage, op), tick in ticks.items():
            rows[stage][tick] = op
        return tuple(map(tuple, rows))

    @property
    def ticks(self) -> int:
        """Number of ticks until the last operation has ended."""
        return len(self.table[0])

    @cached_property
    def kinds_at_once(self) -> Mapping[frozenset[Kind], int]:
        """Kinds of operations that stages run in the same tick -> number of such ticks."""
        return Counter(frozenset(op.kind for op in column if op) for column in zip(*self.table, strict=True))

    def lockstep(self, costs: PassTimes = EQUAL) -> float:
        """Time from the first start to the last end, if each tick lasts as long as its longest operation."""
        seconds: Mapping[Kind, float] = {kind: self.duration(Op(kind, 0), costs) for kind in get_args(Kind)}
        return sum(ticks * max(seconds[kind] for kind in kinds) for kinds, ticks in self.kinds_at_once.items())

    def duration(self, op: Op, costs: PassTimes = EQUAL) -> float:
        """Duration of one operation on one chunk."""
        backward = costs.inputs if self.splits_backward else costs.inputs + costs.weights
        return {"F": costs.forward, "B": backward, "W": costs.weights}[op.kind] / self.chunks

    def makespan(self, costs: PassTimes = EQUAL) -> float:
        """Time from the first start to the last end, if stages wait only for results that they need.

        Without separate weight gradients the last stage does not pause between the first forward passes and the last
        backward passes of one chunk on each other stage.
        """
        if not self.splits_backward:
            return (self.microbatches + (self.stages - 1) / self.chunks) * sum(costs)
        starts = self.starts(lambda stage, op: self.duration(op, costs))
        return max(start + self.duration(op, costs) for (_, op), start in starts.items())

    def bubble(self, costs: PassTimes = EQUAL) -> float:
        """The fraction of time that a stage is idle, if stages wait only for results that they need."""
        return 1 - self.microbatches * sum(costs) / self.makespan(costs)

    def lockstep_bubble(self, costs: PassTimes = EQUAL) -> float:
        """The fraction of time lost if each tick lasts as long as its longest operation."""
        return 1 - self.makespan(costs) / self.lockstep(costs)

    def in_flight(self, stage: int) -> int:
        """Maximum number of microbatches, once per chunk, whose forward but not backward pass is complete on
        a stage.
        """
        last: Kind = "W" if self.splits_backward else "B"
        peak = current = 0
        for op in self.orders[stage]:
            current += op.kind == "F"
            peak = max(peak, current)
            current -= op.kind == last
        return peak

    def as_dict(self) -> dict[str, Any]:
        """JSON values: name, chunks per stage, and each stage's operation at each tick, null if idle."""
        rows = [[op and op._asdict() for op in row] for row in self.table]
        return {"schedule": self.name, "chunks": self.chunks, "stages": rows}

    def __str__(self) -> str:
        """The table: a line for each stage, a column for each tick.

        >>> print(one_f_one_b(2, 3))
        F0 F1 .. B0 F2 B1 .. B2
        .. F0 B0 F1 B1 F2 B2 ..
        """
        rows = [[".." if op is None else str(op) for op in row] for row in self.table]
        width = max(len(cell) for row in rows for cell in row)
        return "\n".join(" ".join(cell.ljust(width, "." if cell == ".." else " ") for cell in row) for row in rows)


def gpipe(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """GPipe: all forward passes, then all backward passes (Huang et al. 2019, "GPipe", section 2.2)."""
    _require("gpipe", stages, microbatches, chunks)

    def orders() -> tuple[tuple[Op, ...], ...]:
        forward = [Op("F", m) for m in range(microbatches)]
        return (tuple(forward + [Op("B", m) for m in reversed(range(microbatches))]),) * stages

    return Schedule("gpipe", stages, microbatches, 1, orders)


def one_f_one_b(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """1F1B: warm-up forward passes, then one forward and one backward (Narayanan et al. 2021, section 2.2.1)."""
    _require("1f1b", stages, microbatches, chunks)
    return _alternating("1f1b", stages, microbatches, 1, [stages - 1 - stage for stage in range(stages)])


def interleaved(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: several chunks per stage (Narayanan et al. 2021, "PTD-P", section 2.2.2).

    A stage runs a chunk for a group of microbatches, one per stage, before it runs the next chunk.
    """
    _require("interleaved", stages, microbatches, chunks, most_chunks=math.inf)
    if microbatches % stages:
        problem = f"pipeline={stages} does not divide microbatches={microbatches}, which schedule=interleaved needs"
        raise WrongSize(problem, "microbatches", range(stages, 9 * stages, stages), ", or use schedule=1f1b")
    warmups = [2 * (stages - 1 - stage) + (chunks - 1) * stages for stage in range(stages)]
    return _alternating("interleaved", stages, microbatches, chunks, warmups)


def zero_bubble(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """ZB-H1: 1F1B that computes weight gradients when a stage would be idle (Qi et al. 2023, section 2.2).

    Stage s defers the weight gradients of s microbatches. No stage has more microbatches in flight than the first one.
    """
    _require("zb-h1", stages, microbatches, chunks)

    def of_stage(stage: int, order: Sequence[Op]) -> tuple[Op, ...]:
        ops: list[Op] = []
        for op in order:
            deferred = op.microbatch - stage
            ops += [op, Op("W", deferred)] if op.kind == "B" and deferred >= 0 else [op]
        return (*ops, *(Op("W", m) for m in range(max(0, microbatches - stage), microbatches)))

    def orders() -> tuple[tuple[Op, ...], ...]:
        return tuple(of_stage(*pair) for pair in enumerate(one_f_one_b(stages, microbatches).orders))

    return Schedule("zb-h1", stages, microbatches, 1, orders, splits_backward=True)


SCHEDULES: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved, "zb-h1": zero_bubble}
)


def _alternating(name: str, stages: int, microbatches: int, chunks: int, warmups: Sequence[int]) -> Schedule:
    """1F1B after a warm-up: `warmups` forward passes of each stage, alternating passes, remaining backward passes."""

    def orders() -> tuple[tuple[Op, ...], ...]:
        # Each chunk runs for a group of microbatches, one per stage. The backward pass starts with the last chunk.
        turns = [divmod(turn, stages * chunks) for turn in range(microbatches * chunks)]
        passes = [(group * stages + position % stages, position // stages) for group, position in turns]
        forward = [Op("F", m, chunk) for m, chunk in passes]
        backward = [Op("B", m, chunks - 1 - chunk) for m, chunk in passes]
        found = []
        for warmup in warmups:
            steady = forward[warmup:]
            pairs = [op for pair in zip(steady, backward, strict=False) for op in pair]
            found.append((*forward[:warmup], *pairs, *backward[len(steady) :]))
        return tuple(found)

    return Schedule(name, stages, microbatches, chunks, orders)


def _require(name: str, stages: int, microbatches: int, chunks: int, most_chunks: float = 1) -> None:
    for what, number in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if type(number) is not int or number < 1:
            raise Infeasible(f"schedule {name} of {what}={number!r}; it must be a whole number of at least 1")
    if chunks > most_chunks:
        raise Infeasible(f"schedule {name} has one chunk per stage, not {chunks}; use interleaved for more")
    if (cells := stages * (stages + chunks * microbatches)) > MOST_CELLS:
        size = f"schedule {name} of stages={stages}, microbatches={microbatches} and chunks={chunks}"
        problem = f"{size} makes a table of about {2 * cells:,} cells"
        raise Infeasible(f"{problem}; use fewer, for at most {2 * MOST_CELLS:,} cells")
