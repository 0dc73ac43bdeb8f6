"""The passes of a step on the stages of the pipeline: when each begins, and what fills each stage.

Stages in lockstep (meshmark) exchange arrays, and compute the loss of a microbatch together, at the end of a tick of
the schedule. Other stages wait only for what they need. A pass includes the time to send its result.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from benchmarks.simulate.queues import Parts, added, scaled
from benchmarks.simulate.stack import Stack
from strategies.core.plan import Plan
from strategies.pipelining.orders import one_f_one_b
from strategies.pipelining.schedules import Schedule
from strategies.pipelining.timetable import KINDS, order_of


class Pass(NamedTuple):
    """A pass on a stage, such as F0, B0 or W0, or a pair, such as F1&B0, or what is done between or after passes, with
    its seconds in order.
    """

    stage: int
    name: str
    begin_seconds: float
    parts: Parts


@dataclass(frozen=True)
class Stages:
    """The stages of a step.

    By the kind of pass, or of a pair ("FB"), `work` is that of the layers of a stage's chunk, and `embedding_and_head`
    has the loss, too. To send the residual stream of a microbatch to the next stage takes `send_seconds`.
    """

    plan: Plan
    stack: Stack
    work: Mapping[str, Parts]
    embedding_and_head: Mapping[str, Parts]
    send_seconds: float

    @cached_property
    def parts(self) -> Parts:
        """The seconds of the last stage, which computes the loss, until the last pass ends."""
        plan, times, chunks = self.plan, self.plan.train.microbatches, self.plan.schedule.chunks
        sends = (plan.ticks.exchanges if self.lockstep else (2 * chunks - 1) * times) if plan.staged else 0
        pairs = int((plan.ticks.turns.kind[:, -1] == KINDS.index("FB")).sum()) if "FB" in self.work else 0
        alone = times * (chunks - self.missing_share) - pairs
        busy = added(
            *(scaled(parts, pairs if kind == "FB" else alone) for kind, parts in self.work.items()),
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
        """When the last pass ends. Of long alternating schedules only a microbatch for each stage is simulated.

        From then on the slowest stage works without a pause, so each further microbatch adds its passes there. Under
        1F1B the last stage, if it is the slowest, does so from the first microbatch.
        """
        if self.lockstep:
            return float(self.ticks[-1])
        short, times = self.schedule, self.plan.train.microbatches
        stages, chunks = short.stages, short.chunks
        busy = [sum(self.seconds[stage, *of] for of in product(self.work, range(chunks))) for stage in range(stages)]
        few = 1 if short.name == "1f1b" and busy[-1] == max(busy) else stages
        if short.name in ("1f1b", "interleaved") and times > few:
            short = order_of(stages * chunks, stages, few, short.name, chunks).schedule
        # As in `Schedule.starts`, without a call for each pass: a prediction is to take at most 2 ms.
        seconds, free_at, ends = self.seconds, [0.0] * stages, [0.0]
        for stage, (kind, _, chunk), need in short.sequence:
            free_at[stage] = max(free_at[stage], ends[need]) + seconds[stage, kind, chunk]
            ends.append(free_at[stage])
        return max(free_at) + (times - short.microbatches) * max(busy)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule. Without stages it is that of one stage, on which the passes of each microbatch follow."""
        return self.plan.schedule if self.plan.staged else one_f_one_b(1, self.plan.train.microbatches)

    @cached_property
    def ticks(self) -> np.ndarray:
        """When each tick of stages in lockstep begins, and when the last one ends."""
        ticks, seconds = self.plan.ticks, [sum(self.work.get(kind, {}).values()) for kind in KINDS]
        head = sum(added(*self.embedding_and_head.values()).values())
        together = (ticks.shared.leaves >= 0) * head + ticks.sends * self.send_seconds
        return np.concatenate([[0.0], (np.array(seconds)[ticks.turns.kind].max(axis=1) + together).cumsum()])

    @cached_property
    def seconds(self) -> Mapping[tuple[int, str, int], float]:
        """Seconds of each stage's passes of a kind through a chunk."""
        keys = product(range(self.schedule.stages), self.work, range(self.schedule.chunks))
        return {key: sum(self.parts_of(*key).values()) for key in keys}

    def parts_of(self, stage: int, kind: str, chunk: int) -> Parts:
        """Seconds of a pass by what they are spent on. The last part has the ends, or each has a share of them."""
        schedule, work = self.schedule, self.work[kind]
        part, last = schedule.part(stage, chunk), schedule.stages * schedule.chunks - 1
        if kind == "W":  # which sends nothing
            return work
        if part == last or self.stack.embedding_and_head == "all":
            work = added(scaled(work, 1 - self.missing_share), self.embedding_and_head.get(kind, {}))
        return work if part == (last if kind == "F" else 0) else added(work, {"sends": self.send_seconds})

    def passes(self) -> Iterator[Pass]:
        """Yield what each stage does when."""
        if self.lockstep:
            yield from self._in_lockstep()
        else:
            starts = self.schedule.starts(lambda stage, op: self.seconds[stage, op.kind, op.chunk])
            for (stage, op), start in starts.items():
                yield Pass(stage, str(op), start, self.parts_of(stage, op.kind, op.chunk))

    def _in_lockstep(self) -> Iterator[Pass]:
        """Yield passes tick by tick, and what all stages do together at the end of a tick."""
        shared, head = self.plan.ticks.shared, added(*self.embedding_and_head.values())
        for tick, column in enumerate(zip(*self.plan.schedule.table, strict=True)):
            begin, end, leaves = float(self.ticks[tick]), float(self.ticks[tick + 1]), shared.leaves[tick]
            for stage, cell in enumerate(column):
                if cell:
                    yield Pass(stage, "&".join(map(str, cell)), begin, self.work["".join(op.kind for op in cell)])
            sends = int(self.plan.ticks.sends[tick]) * self.send_seconds
            if leaves >= 0:
                begin = end - sends - sum(head.values())
                yield from (Pass(stage, f"head {leaves}", begin, head) for stage in range(self.plan.stages))
            if sends:
                yield from (Pass(stage, "sends", end - sends, {"sends": sends}) for stage in range(self.plan.stages))
