"""A pipeline's schedule run pass by pass, with the seconds of each pass on each stage."""

from collections.abc import Callable, Iterator

from benchmarks.seconds.stack import FIRST_AND_LAST, Stack
from benchmarks.seconds.timeline import LayerSeconds, Parts, Pass, added, scaled
from strategies.core.plan import Plan
from strategies.pipelining.schedules import Costs, Op


def pipelined(plan: Plan, stack: Stack, layers: LayerSeconds, ends: tuple[Parts, Parts], send_seconds: float) -> Parts:
    """Seconds of all passes of the stage that works most, by what they are spent on, and of the bubble.

    Args:
        plan: the step.
        stack: the software.
        layers: seconds of a layer for one microbatch.
        ends: seconds of the embedding, the head and the loss for one microbatch, forward and backward.
        send_seconds: to send the residual stream of a microbatch to the next stage.
    """
    times, chunks = plan.train.microbatches, plan.schedule.chunks
    if stack.lockstep:
        # All stages share the ends, and exchange arrays at the end of each tick.
        sends = plan.ticks.exchanges * send_seconds
        seconds = plan.schedule.lockstep(_costs(plan, layers)) + times * sum(added(*ends).values()) + sends
    else:
        sends = (2 * chunks - 1) * times * send_seconds
        duration = durations(plan, stack, layers, ends, send_seconds)
        starts = plan.schedule.starts(duration)
        seconds = max(start + duration(*each) for each, start in starts.items())
    work = scaled(added(layers.forward, layers.backward), times * plan.layers)
    busy = added(work, scaled(added(*ends), times), {"sends": sends})
    return added(busy, {"bubble": seconds - sum(busy.values())})


def durations(
    plan: Plan, stack: Stack, layers: LayerSeconds, ends: tuple[Parts, Parts], send_seconds: float
) -> Callable[[int, Op], float]:
    """The seconds of an operation on a stage. Both stages wait while one sends. Arguments are those of `pipelined`."""
    costs, schedule = _costs(plan, layers), plan.schedule
    head = {"F": sum(ends[0].values()), "B": sum(ends[1].values())}

    def seconds(stage: int, op: Op) -> float:
        sending = send_seconds if _sends(plan, stage, op) else 0.0
        return schedule.duration(op, costs) + sending + (head[op.kind] if _has_head(plan, stack, stage, op) else 0.0)

    return seconds


def passes(
    plan: Plan, stack: Stack, layers: LayerSeconds, ends: tuple[Parts, Parts], send_seconds: float
) -> Iterator[Pass]:
    """When each stage runs which pass, and what it does besides. Arguments are those of `pipelined`."""
    run = _in_lockstep if stack.lockstep else _as_needed
    return run(plan, stack, layers, ends, send_seconds)


def _in_lockstep(
    plan: Plan, stack: Stack, layers: LayerSeconds, ends: tuple[Parts, Parts], send_seconds: float
) -> Iterator[Pass]:
    """Passes of stages that exchange arrays, and compute the loss of a microbatch together, at the end of a tick."""
    shared, stages, begin = plan.ticks.shared, range(plan.schedule.stages), 0.0
    for tick, column in enumerate(zip(*plan.schedule.table, strict=True)):
        running = [Pass(s, named(op), begin, _work(plan, layers, op)) for s, op in enumerate(column) if op]
        yield from running
        begin = max(each.end_seconds for each in running)
        leaves, exchanges = shared.leaves[tick], int((shared.edges[tick] >= 0).sum())
        together = {f"ends {leaves}": added(*ends)} if leaves >= 0 else {}
        for name, parts in (together | {"sends": {"sends": exchanges * send_seconds}}).items():
            if seconds := sum(parts.values()):
                yield from (Pass(stage, name, begin, parts) for stage in stages)
                begin += seconds


def _as_needed(
    plan: Plan, stack: Stack, layers: LayerSeconds, ends: tuple[Parts, Parts], send_seconds: float
) -> Iterator[Pass]:
    """Passes of stages that wait only for what they need."""
    for (stage, op), start in plan.schedule.starts(durations(plan, stack, layers, ends, send_seconds)).items():
        parts = _work(plan, layers, op)
        if _has_head(plan, stack, stage, op):
            parts = added(parts, ends[op.kind == "B"])
        if _sends(plan, stage, op):
            parts = added(parts, {"sends": send_seconds})
        yield Pass(stage, named(op), start, parts)


def named(op: Op) -> str:
    """The name of a pass, with a prime for each chunk before its own.

    >>> named(Op("F", 2, chunk=1))
    "F2'"
    """
    return f"{op.kind}{op.microbatch}" + op.chunk * "'"


def _work(plan: Plan, layers: LayerSeconds, op: Op) -> Parts:
    """Seconds of an operation in the layers of its chunk."""
    backward = layers.inputs if plan.schedule.splits_backward else layers.backward
    parts = {"F": layers.forward, "B": backward, "W": layers.weights}[op.kind]
    return scaled(parts, plan.layers / plan.schedule.chunks)


def _has_head(plan: Plan, stack: Stack, stage: int, op: Op) -> bool:
    """Whether an operation includes the ends of the model: on the last stage, or a share of them on each."""
    return op.kind != "W" and (stack.ends != FIRST_AND_LAST or (stage, op.chunk) == _last(plan))


def _sends(plan: Plan, stage: int, op: Op) -> bool:
    """Whether a stage sends what an operation computes. The ends of the model send nothing outwards."""
    return op.kind != "W" and (op.kind, stage, op.chunk) not in {("F", *_last(plan)), ("B", 0, 0)}


def _last(plan: Plan) -> tuple[int, int]:
    """The stage and the chunk that are last."""
    return plan.schedule.stages - 1, plan.schedule.chunks - 1


def _costs(plan: Plan, layers: LayerSeconds) -> Costs:
    """Seconds of the passes of a whole stage for one microbatch."""
    return Costs(*(plan.layers * sum(parts.values()) for parts in layers))
