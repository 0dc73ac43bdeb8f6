"""The orders of pipeline schedules: gpipe, 1f1b, interleaved, zb-h1, eager-1f1b, eager-zb, zb-v and dualpipe-v.

Formulas of all: docs/reference/which-pipeline-schedule.md.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from types import MappingProxyType
from typing import get_args

from strategies.config import PipelineSchedule
from strategies.infeasible import Infeasible, WrongSize
from strategies.pipelining.schedules import Op, Orders, PassKind, PassTimes, Schedule

MOST_CELLS = 300_000
"""Largest table of a schedule, in pairs of cells (a forward and a backward pass). Making it takes a few seconds."""
KINDS: Mapping[str, PassKind] = MappingProxyType({kind: kind for kind in get_args(PassKind)})


def gpipe(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """GPipe: all forward passes, then all backward passes (Huang et al. 2019, "GPipe", section 2.2)."""
    _require("gpipe", stages, microbatches, chunks)

    def orders() -> Orders:
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


def eager_1f1b(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """1F1B with twice the forward passes ahead (Zhuang et al. 2023, "On Optimizing the Communication of Model
    Parallelism", section 4), in ticks that are forward and backward in turn.

    A microbatch's backward pass on the last stage follows its forward pass in the next tick. So steps of stages in
    lockstep take (M + S - 1) (F + B + W), as those of 1F1B would if its stages waited only for what they need, for
    2 (S - 1 - s) + 1 microbatches in flight on stage s.
    """
    _require("eager-1f1b", stages, microbatches, chunks)
    warmups = [2 * (stages - 1 - stage) for stage in range(stages)]
    return replace(_alternating("eager-1f1b", stages, microbatches, 1, warmups), in_turn=True)


def zero_bubble(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """ZB-H1: 1F1B that computes weight gradients when a stage would be idle (Qi et al. 2023, section 2.2).

    No stage has more microbatches in flight than the first one.
    """
    _require("zb-h1", stages, microbatches, chunks)
    return _deferring("zb-h1", one_f_one_b(stages, microbatches))


def eager_zero_bubble(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Eager 1F1B with weight gradients in ticks of their own.

    With M >= S, steps of stages in lockstep take M (F + B + W) + (S - 1) (F + B), however much F, B and W differ, for
    2 S - 1 - s microbatches in flight on stage s.
    """
    _require("eager-zb", stages, microbatches, chunks)
    return _deferring("eager-zb", eager_1f1b(stages, microbatches))


def zero_bubble_v(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """ZB-V: zero bubble with two chunks of a V-shaped model (Qi et al. 2023, section 6).

    If all passes take equally long, stages only wait for the first and the last ones, with as many microbatches in
    flight as 1F1B.
    """
    _require_v("zb-v", stages, microbatches, chunks)

    def of_stage(stage: int) -> tuple[Op, ...]:
        ops, ahead = _Ops(microbatches), stages - stage
        ops.add("F0", 2 * ahead - 1)
        ops.add("F1 F0", stage)
        ops.add("F1 B1 W1", ahead)
        # With fewer microbatches than 2 S - 1 those that are missing leave their turns empty.
        ops.add("F0 B0 W0 F1 B1 W1", max(microbatches, 2 * stages - 1) - stages)
        ops.add("B0 B1", stage)
        ops.add("B0 W0", ahead)
        ops.add("W1", stage)
        ops.add("W0", stage)
        return tuple(ops.found)

    return Schedule("zb-v", stages, microbatches, 2, _of_each(stages, of_stage), splits_backward=True, v_shaped=True)


def dualpipe_v(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """DualPipe-V: pairs of a forward and a backward pass of two microbatches in a V-shaped model (DeepSeek-AI 2024,
    "DeepSeek-V3 Technical Report", section 3.2.1, and the DualPipe repository).

    Both passes of a pair run in one tick, layer by layer. Backward passes compute weight gradients, too: waiting for
    them at the end, as DeepSeek does, gains nothing in lockstep.
    """
    _require_v("dualpipe-v", stages, microbatches, chunks)
    if microbatches < 2 * stages:
        problem = f"pipeline={stages} needs microbatches of at least {2 * stages} with schedule=dualpipe-v"
        raise WrongSize(problem, "microbatches", range(2 * stages, 9 * stages, stages), ", or use schedule=zb-v")

    def of_stage(stage: int) -> tuple[Op, ...]:
        ops, ahead = _Ops(microbatches), stages - stage - 1
        ops.add("F0", 2 * ahead)
        ops.add("F0 F1", stage + 1)
        ops.add("B1 F1", ahead)
        ops.add("F0 B1 F1 B0", microbatches - 2 * stages + stage + 1)
        ops.add("B1 F1 B0", ahead)
        ops.add("B1 B0", stage + 1)
        ops.add("B0", ahead)
        return tuple(ops.found)

    return Schedule("dualpipe-v", stages, microbatches, 2, _of_each(stages, of_stage), pairs=True, v_shaped=True)


SCHEDULES: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "eager-1f1b": eager_1f1b,
        "interleaved": interleaved,
        "zb-h1": zero_bubble,
        "eager-zb": eager_zero_bubble,
        "zb-v": zero_bubble_v,
        "dualpipe-v": dualpipe_v,
    }
)
"""By name. Arguments are stages, microbatches, and chunks where a schedule has a choice."""


@cache
def layer_slots(layers: int, schedule: Schedule) -> tuple[int, ...]:
    """The layer in each slot of the stacked blocks, by stage, then by chunk; -1 for an empty slot.

    If the parts of the model do not divide the layers, the first parts have one layer more; only layers count, because
    all stages share the embedding and the head. Every part has the number of slots of the largest part.

    >>> layer_slots(4, SCHEDULES["interleaved"](2, 2))
    (0, 2, 1, 3)
    >>> layer_slots(4, SCHEDULES["zb-v"](2, 2))
    (0, 3, 1, 2)
    >>> layer_slots(3, SCHEDULES["1f1b"](2, 2))
    (0, 1, 2, -1)
    """
    stages, chunks = schedule.stages, schedule.chunks
    count = stages * chunks
    if count > layers:
        problem = f"{layers} blocks are too few for {count} parts of a pipeline"
        raise WrongSize(problem, "pipeline", range(1, max(1, layers // chunks) + 1))
    each, more = divmod(layers, count)
    sizes = [each + 1] * more + [each] * (count - more)
    starts = list(accumulate(sizes, initial=0))
    room = max(sizes)
    parts = [[*range(starts[i], starts[i + 1]), *[-1] * (room - size)] for i, size in enumerate(sizes)]
    held = [schedule.part(stage, chunk) for stage in range(stages) for chunk in range(chunks)]
    return tuple(layer for part in held for layer in parts[part])


def stage_schedule(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Schedule:
    """The schedule of a pipeline. `chunks` is per stage and only for "interleaved"."""
    made = SCHEDULES[schedule](stages, microbatches, *([chunks] if schedule == "interleaved" else []))
    layer_slots(layers, made)
    return made


@cache
def best_schedule(layers: int, stages: int, microbatches: int, chunks: int, passes: PassTimes) -> PipelineSchedule:
    """The schedule that loses least of a step in lockstep, of those that hold less than 2 microbatches for each stage.

    `passes` are the times of a microbatch's passes. The other arguments are as for `stage_schedule`.

    >>> best_schedule(64, 8, 64, 2, PassTimes(1, 1, 1)), best_schedule(64, 8, 64, 2, PassTimes(1, 1.75, 0.5))
    ('zb-v', 'eager-zb')
    """
    lost = dict[PipelineSchedule, float]()
    for name in get_args(PipelineSchedule):
        try:
            made = stage_schedule(layers, stages, microbatches, name, chunks)
        except Infeasible:
            continue
        if made.in_flight(0) < 2 * stages * made.chunks:
            lost[name] = made.lost(passes)
    if not lost:
        layer_slots(layers, one_f_one_b(stages, microbatches))  # says what does not fit
    return min(lost, key=lost.__getitem__)


class _Ops:
    """Operations of a stage, whose microbatches count up from zero for each kind and chunk."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches, self.found, self.done = microbatches, list[Op](), Counter[str]()

    def add(self, turns: str, times: int = 1) -> None:
        """Add operations, such as "F0 B1" for a forward pass of chunk 0 and a backward pass of chunk 1."""
        for turn in turns.split() * times:
            if (m := self.done[turn]) < self.microbatches:
                self.found.append(Op(KINDS[turn[0]], m, int(turn[1])))
            self.done[turn] += 1


def _of_each(stages: int, of_stage: Callable[[int], tuple[Op, ...]]) -> Callable[[], Orders]:
    return lambda: tuple(map(of_stage, range(stages)))


def _deferring(name: str, schedule: Schedule) -> Schedule:
    """The schedule with weight gradients apart. Stage s defers those of s microbatches."""
    microbatches = schedule.microbatches

    def of_stage(stage: int) -> tuple[Op, ...]:
        ops: list[Op] = []
        for op in schedule.orders[stage]:
            deferred = op.microbatch - stage
            ops += [op, Op("W", deferred)] if op.kind == "B" and deferred >= 0 else [op]
        return (*ops, *(Op("W", m) for m in range(max(0, microbatches - stage), microbatches)))

    make_orders = _of_each(schedule.stages, of_stage)
    return replace(schedule, name=name, make_orders=make_orders, splits_backward=True)


def _alternating(name: str, stages: int, microbatches: int, chunks: int, warmups: Sequence[int]) -> Schedule:
    """1F1B after a warm-up: `warmups` forward passes of each stage, alternating passes, remaining backward passes."""

    def orders() -> Orders:
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


def _require_v(name: str, stages: int, microbatches: int, chunks: int) -> None:
    _require(name, stages, microbatches, chunks, most_chunks=math.inf)
    if chunks != 2:
        raise Infeasible(f"schedule {name} has two chunks per stage, not {chunks}; use interleaved for other numbers")
