"""Layers and schedule of pipeline stages."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

from strategies.config import PipelineSchedule
from strategies.infeasible import WrongSize
from strategies.pipelining.schedules import SCHEDULES, PassTimes, Schedule
from strategies.pipelining.timetable import Ticks


@cache
def layer_slots(layers: int, stages: int, chunks: int) -> tuple[int, ...]:
    """The layer in each slot of the stacked blocks, by stage, then by chunk; -1 for an empty slot.

    Consecutive parts of the model are on consecutive stages, one round per chunk. If the parts do not divide the
    layers, the first parts have one layer more; only layers count, because all stages share the embedding and the head.
    Every part has the number of slots of the largest part.

    >>> layer_slots(4, 2, 2)
    (0, 2, 1, 3)
    >>> layer_slots(3, 2, 1)
    (0, 1, 2, -1)
    """
    count = stages * chunks
    if count > layers:
        problem = f"{layers} blocks are too few for {count} parts of a pipeline"
        raise WrongSize(problem, "pipeline", range(1, max(1, layers // chunks) + 1))
    each, more = divmod(layers, count)
    sizes = [each + 1] * more + [each] * (count - more)
    starts = list(accumulate(sizes, initial=0))
    room = max(sizes)
    parts = [[*range(starts[i], starts[i + 1]), *[-1] * (room - size)] for i, size in enumerate(sizes)]
    return tuple(layer for stage in range(stages) for part in parts[stage::stages] for layer in part)


def stage_schedule(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Schedule:
    """The schedule of a pipeline. `chunks` is per stage and only for "interleaved"; other schedules have one."""
    chunks = chunks if schedule == "interleaved" else 1
    layer_slots(layers, stages, chunks)
    return SCHEDULES[schedule](stages, microbatches, chunks)


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
