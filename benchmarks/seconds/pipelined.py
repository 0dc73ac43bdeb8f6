"""A pipeline's schedule run pass by pass, with the seconds of each pass on each stage."""

from collections.abc import Callable

from benchmarks.seconds.stack import FIRST_AND_LAST, Stack
from benchmarks.seconds.timeline import Parts, Span, added, scaled
from strategies.costs.plan import Plan
from strategies.pipelining.schedules import Costs, Op

WEIGHTS_SHARE = 0.5
"""Of a backward pass: the share of the gradients of weights, which zb-h1 runs apart."""


def pipelined(
    plan: Plan, stack: Stack, layers: tuple[Parts, Parts], ends: tuple[Parts, Parts], send_seconds: float
) -> Parts:
    """Seconds of all passes of the stage that works most, by what they are spent on, and of the bubble.

    Args:
        plan: the step.
        stack: the software.
        layers: seconds of a layer for one microbatch, forward and backward.
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
    work = scaled(added(*layers), times * plan.layers)
    busy = added(work, scaled(added(*ends), times), {"sends": sends})
    return added(busy, {"bubble": seconds - sum(busy.values())})


def durations(
    plan: Plan, stack: Stack, layers: tuple[Parts, Parts], ends: tuple[Parts, Parts], send_seconds: float
) -> Callable[[int, Op], float]:
    """The seconds of an operation on a stage. Both stages wait while one sends. Arguments are those of `pipelined`.

    The last part of the model sends nothing forward, and the first nothing backward.
    """
    costs, schedule = _costs(plan, layers), plan.schedule
    head = {"F": sum(ends[0].values()), "B": sum(ends[1].values()), "W": 0.0}
    first, last = (0, 0), (schedule.stages - 1, schedule.chunks - 1)
    silent = {("F", *last), ("B", *first)}

    def seconds(stage: int, op: Op) -> float:
        at_head = stack.ends != FIRST_AND_LAST or (stage, op.chunk) == last
        sending = 0.0 if op.kind == "W" or (op.kind, stage, op.chunk) in silent else send_seconds
        return schedule.duration(op, costs) + sending + (head[op.kind] if at_head else 0.0)

    return seconds


def passes(
    plan: Plan, stack: Stack, layers: tuple[Parts, Parts], ends: tuple[Parts, Parts], send_seconds: float
) -> tuple[Span, ...]:
    """When each pass of each stage runs, if a stage waits only for what it needs. Arguments are as for `pipelined`."""
    duration = durations(plan, stack, layers, ends, send_seconds)
    starts = plan.schedule.starts(duration)
    return tuple(
        Span(f"stage {stage}", f"{op.kind}{op.microbatch}", start, duration(stage, op))
        for (stage, op), start in starts.items()
    )


def _costs(plan: Plan, layers: tuple[Parts, Parts]) -> Costs:
    """Seconds of the passes of a whole stage for one microbatch."""
    forward, backward = (plan.layers * sum(parts.values()) for parts in layers)
    return Costs(forward, backward * (1 - WEIGHTS_SHARE), backward * WEIGHTS_SHARE)
