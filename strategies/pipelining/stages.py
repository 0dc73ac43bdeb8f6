"""Layers and schedule of the stages of a pipeline: which layers each holds, and in which order it runs.

A partition of the layers' costs minimises the largest part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

import numpy as np

from strategies.config import PipelineSchedule
from strategies.infeasible import Infeasible
from strategies.pipelining.schedules import SCHEDULES, Costs, Schedule
from strategies.pipelining.timetable import Ticks


def partition(costs: Sequence[float], parts: int, first: float = 0.0, last: float = 0.0) -> tuple[int, ...]:
    """The number of costs in each part, in order, such that the largest sum is minimal. No part is empty.

    The result is exact, by dynamic programming: p n log n steps for n costs and p parts. Of equally good partitions it
    is the one with the smallest last parts.

    Args:
        costs: of the layers, measured or modelled, in seconds, FLOPs or bytes; none is negative.
        parts: number of stages, or of stages times chunks.
        first, last: additional costs of the first and the last part, as of an embedding and a head that are not shared.

    Raises:
        Infeasible: there are fewer costs than parts.

    >>> partition([1, 1, 1, 1, 1, 1, 1, 1], 3)
    (3, 3, 2)
    >>> partition([1, 1, 1, 1, 1, 1, 1, 1], 2, last=4)
    (6, 2)
    """
    count = len(costs)
    if parts > count:
        raise Infeasible(f"{count} layers are too few for {parts} parts of a pipeline; take at most {count}")
    sums = np.cumsum([0.0, *costs])
    best = first + sums[1:]  # the least largest part, if the parts so far end at each end that they can have
    cuts = []
    for part in range(1, parts):
        best, start, furthest = best[:-1], sums[part:-1], np.arange(count - part)
        end = sums[part + 1 :] + (last if part == parts - 1 else 0.0)
        # A later start leaves more to the parts before it, and less to this one: the best is where the two cross.
        late = np.minimum(np.searchsorted(best + start, end), furthest)
        early = np.maximum(late - 1, 0)
        with_early, with_late = (np.maximum(best[cut], end - start[cut]) for cut in (early, late))
        least = np.minimum(with_early, with_late)
        latest = np.minimum(np.searchsorted(best, least, side="right") - 1, furthest)
        cuts.append(part + np.where(with_early < with_late, early, latest))
        best = least
    ends = [count]
    for part in range(parts - 1, 0, -1):
        ends.append(int(cuts[part - 1][ends[-1] - part - 1]))
    return tuple(int(size) for size in np.diff([0, *reversed(ends)]))


@cache
def layer_slots(layers: int, stages: int, chunks: int) -> tuple[int, ...]:
    """The layer in each slot of the stacked blocks, by stage, then by chunk; -1 for an empty slot.

    Consecutive parts of the model are on consecutive stages, once around for each chunk. Every part has as many slots
    as the largest part has layers.

    Raises:
        Infeasible: there are fewer layers than parts.

    >>> layer_slots(4, 2, 2)
    (0, 2, 1, 3)
    >>> layer_slots(3, 2, 1)
    (0, 1, 2, -1)
    """
    sizes = partition([1.0] * layers, stages * chunks)
    starts = list(accumulate(sizes, initial=0))
    room = max(sizes)
    parts = [[*range(starts[i], starts[i + 1]), *[-1] * (room - size)] for i, size in enumerate(sizes)]
    return tuple(layer for stage in range(stages) for part in parts[stage::stages] for layer in part)


def stage_schedule(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Schedule:
    """The schedule of a pipeline.

    Args:
        layers: of the model.
        stages: of the pipeline.
        microbatches: in a batch.
        schedule: the name of the schedule.
        chunks: of each stage, for the schedule "interleaved". The others have one.

    Raises:
        Infeasible: fewer layers than parts, or microbatches that do not fit the schedule.
    """
    chunks = chunks if schedule == "interleaved" else 1
    layer_slots(layers, stages, chunks)
    return SCHEDULES[schedule](stages, microbatches, chunks)


@dataclass(frozen=True)
class Order:
    """A schedule, with cached results of what takes long to compute from it."""

    schedule: Schedule

    @cached_property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return Ticks.of(self.schedule)

    @cached_property
    def _bubble(self) -> Callable[[Costs], float]:
        return cache(self.schedule.bubble)

    def bubble(self, costs: Costs) -> float:
        """The fraction of time for which a stage is idle (`Schedule.bubble`), cached by proportions of the costs."""
        return self._bubble(Costs(*(cost / sum(costs) for cost in costs)))


@cache
def order_of(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Order:
    """The `Order` of a schedule, cached for all plans that share it. Arguments are those of `stage_schedule`.

    Raises:
        Infeasible: fewer layers than parts, or microbatches that do not fit the schedule.
    """
    return Order(stage_schedule(layers, stages, microbatches, schedule, chunks))
