"""The passes of a step on the stages of the pipeline: when each begins, and what fills each stage.

Stages in lockstep (meshmark) exchange arrays, and compute the loss of a microbatch together, at the end of a tick of
the schedule. Other stages wait only for what they need; under Megatron-LM only the first and the last have the
embedding and the head. Without stages the passes of a microbatch follow those of the one before.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from benchmarks.simulate.queues import Parts, added, scaled
from benchmarks.simulate.stack import Stack
from strategies.core.plan import Plan
from strategies.pipelining.schedules import Kind, Op, Schedule
from strategies.pipelining.timetable import KINDS, order_of

MANY = 4
"""Microbatches for each stage from which an interleaved schedule with sends is not simulated pass by pass. That takes
long, and differs little from the sum of its passes, which is exact without sends."""
Class = tuple[Kind, bool, bool]
"""Of a pass on a stage: its kind, whether it includes the embedding and the head, and whether its result is sent."""


class Pass(NamedTuple):
    """What a stage does from some time on.

    Attributes:
        stage: number of the stage; 0 without stages.
        name: the pass and its microbatch, such as F0, B0 or W0, or what is done between or after passes.
        begin_seconds: from the start of the step.
        parts: its seconds, in this order.
    """

    stage: int
    name: str
    begin_seconds: float
    parts: Parts


@dataclass(frozen=True)
class Stages:
    """The stages of a step.

    Attributes:
        plan: the step.
        stack: the software.
        work: seconds of a pass through the layers of a stage's chunk, by the kind of pass.
        embedding_and_head: seconds of the embedding, the head and the loss for a microbatch, by the kind of pass.
        send_seconds: to send the residual stream of a microbatch to the next stage.
    """

    plan: Plan
    stack: Stack
    work: Mapping[Kind, Parts]
    embedding_and_head: Mapping[Kind, Parts]
    send_seconds: float

    @cached_property
    def parts(self) -> Parts:
        """The seconds of the last stage, which computes the loss, until the last pass ends."""
        plan, times, chunks = self.plan, self.plan.train.microbatches, self.plan.schedule.chunks
        sends = (plan.ticks.exchanges if self.lockstep else (2 * chunks - 1) * times) if plan.staged else 0
        layers = times * (chunks - self.missing_share)
        busy = added(
            *(scaled(parts, layers) for parts in self.work.values()),
            *(scaled(parts, times) for parts in self.embedding_and_head.values()),
            {"sends": sends * self.send_seconds},
        )
        return added(busy, {"bubble": self.end_seconds - sum(busy.values()) if plan.staged else 0.0})

    @property
    def missing_share(self) -> float:
        """The share of a chunk's layers that the last chunk lacks, which has the head instead.

        Where stages do not divide the layers, Megatron-Core counts the embedding and the loss as layers
        (account_for_loss_in_pipeline_split), so that both ends have fewer.
        """
        plan = self.plan
        if not plan.staged or self.stack.embedding_and_head == "all":
            return 0.0
        chunk = plan.layers // plan.schedule.chunks
        return min(math.ceil((plan.layer_slots - plan.config.blocks) / 2), chunk) / chunk

    @property
    def lockstep(self) -> bool:
        """Whether stages exchange arrays at the end of a tick."""
        return self.plan.staged and self.stack.lockstep

    @property
    def end_seconds(self) -> float:
        """When the last pass ends."""
        if not self.plan.staged:
            return self.plan.train.microbatches * sum(self.seconds[kind, True, False] for kind in self.work)
        if self.lockstep:
            return float(self.ticks[-1])
        stages, times, chunks = self.plan.stages, self.plan.train.microbatches, self.plan.schedule.chunks
        if self.plan.train.schedule == "1f1b":
            return self._end_of_1f1b()
        if chunks == 1 or (self.send_seconds and times < MANY * stages):
            return self._end_of(self.plan.schedule)
        # The busiest stage works without a pause; the others run one forward pass before it and one backward pass after
        # it (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2).
        inner = sum(self.seconds[kind, self.stack.embedding_and_head == "all", True] for kind in self.work)
        ends = sum(self.seconds[kind, True, kind == "B"] for kind in self.work)
        return times * ((chunks - 1) * inner + max(inner, ends)) + (stages - 1) * inner

    def _end_of_1f1b(self) -> float:
        """When the last pass ends under 1F1B, of which long ones are not simulated pass by pass.

        If no stage takes longer than the last for a microbatch, the last works without a pause. Otherwise each
        microbatch after as many as there are stages adds what it takes on the slowest stage.
        """
        stages, times = self.plan.stages, self.plan.train.microbatches
        *others, last = (sum(self._seconds(stage, Op(kind, 0)) for kind in self.work) for stage in range(stages))
        if last >= max(others):
            return sum(others) + times * last
        few = min(times, stages)
        return self._end_of(order_of(stages, stages, few, "1f1b", 1).schedule) + (times - few) * max(others)

    def _end_of(self, schedule: Schedule) -> float:
        """When the last pass of a schedule ends. All passes of a kind through a chunk take as long."""
        seconds = cache(lambda stage, kind, chunk: self._seconds(stage, Op(kind, 0, chunk)))
        starts = schedule.starts(lambda stage, op: seconds(stage, op.kind, op.chunk))
        lasts = ((stage, order[-1]) for stage, order in enumerate(schedule.orders))
        return max(starts[key] + self._seconds(*key) for key in lasts)

    @cached_property
    def starts(self) -> Mapping[tuple[int, Op], float]:
        """When each stage begins each of its passes, if it waits only for what it needs. Both stages wait for sends."""
        return self.plan.schedule.starts(self._seconds)

    @cached_property
    def ticks(self) -> np.ndarray:
        """When each tick of stages in lockstep begins, and when the last one ends."""
        ticks, seconds = self.plan.ticks, [sum(self.work.get(kind, {}).values()) if kind else 0.0 for kind in KINDS]
        head = sum(added(*self.embedding_and_head.values()).values())
        together = (ticks.shared.leaves >= 0) * head + (ticks.shared.edges >= 0).sum(axis=1) * self.send_seconds
        return np.concatenate([[0.0], (np.array(seconds)[ticks.turns.kind].max(axis=1) + together).cumsum()])

    @cached_property
    def classes(self) -> Mapping[Class, Parts]:
        """Seconds of a pass of each class, by what they are spent on."""
        sends = {"sends": self.send_seconds}
        return {
            (kind, headed, sent): added(
                scaled(work, 1 - self.missing_share) if headed else work,
                self.embedding_and_head.get(kind, {}) if headed else {},
                sends if sent else {},
            )
            for kind, work in self.work.items()
            for headed in (False, True)
            for sent in (False, True)
        }

    @cached_property
    def seconds(self) -> Mapping[Class, float]:
        """Seconds of a pass of each class."""
        return {class_: sum(parts.values()) for class_, parts in self.classes.items()}

    def _class(self, stage: int, op: Op) -> Class:
        """The class of a pass. The last stage has the ends, or each has a share of them. They send nothing outwards."""
        if op.kind == "W":
            return "W", False, False
        last = stage == self._last[0] and op.chunk == self._last[1]
        outwards = last if op.kind == "F" else stage == op.chunk == 0
        return op.kind, last or self.stack.embedding_and_head == "all", not outwards

    @cached_property
    def _last(self) -> tuple[int, int]:
        """The last stage, and its last chunk."""
        return self.plan.schedule.stages - 1, self.plan.schedule.chunks - 1

    def _seconds(self, stage: int, op: Op) -> float:
        """Seconds of a pass."""
        return self.seconds[self._class(stage, op)]

    def passes(self) -> Iterator[Pass]:
        """Yield what each stage does when."""
        if self.lockstep:
            yield from self._in_lockstep()
        elif self.plan.staged:
            for (stage, op), start in self.starts.items():
                yield Pass(stage, pass_name(op), start, self.classes[self._class(stage, op)])
        else:
            begin = 0.0
            for microbatch in range(self.plan.train.microbatches):
                for kind in self.work:
                    yield Pass(0, f"{kind}{microbatch}", begin, self.classes[kind, True, False])
                    begin += self.seconds[kind, True, False]

    def _in_lockstep(self) -> Iterator[Pass]:
        """Yield passes tick by tick, and what all stages do together at the end of a tick."""
        shared, head = self.plan.ticks.shared, added(*self.embedding_and_head.values())
        for tick, column in enumerate(zip(*self.plan.schedule.table, strict=True)):
            begin, end, leaves = float(self.ticks[tick]), float(self.ticks[tick + 1]), shared.leaves[tick]
            yield from (Pass(stage, pass_name(op), begin, self.work[op.kind]) for stage, op in enumerate(column) if op)
            sends = int((shared.edges[tick] >= 0).sum()) * self.send_seconds
            if leaves >= 0:
                begin = end - sends - sum(head.values())
                yield from (Pass(stage, f"head {leaves}", begin, head) for stage in range(self.plan.stages))
            if sends:
                yield from (Pass(stage, "sends", end - sends, {"sends": sends}) for stage in range(self.plan.stages))


def pass_name(op: Op) -> str:
    """The name of a pass, with a prime for each chunk before its own.

    >>> pass_name(Op("F", 2, chunk=1))
    "F2'"
    """
    return f"{op.kind}{op.microbatch}" + op.chunk * "'"
