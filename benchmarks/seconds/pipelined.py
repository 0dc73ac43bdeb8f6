"""A pipeline's schedule run pass by pass, with the seconds of each pass on each stage."""

from benchmarks.seconds.stack import Stack
from benchmarks.seconds.timeline import Parts, Span, added, scaled
from strategies.costs.plan import Plan
from strategies.pipelining.schedules import Op

WEIGHTS_SHARE = 0.5
"""Of a backward pass without recomputation: the share of the gradients of weights."""


def pipelined(
    plan: Plan,
    stack: Stack,
    layer: tuple[Parts, Parts],
    ends: tuple[Parts, Parts],
    send_seconds: float,
) -> tuple[Parts, tuple[Span, ...]]:
    """Seconds of all passes by what they are spent on, on the stage that works most; and when each pass runs.

    Args:
        plan: the step.
        stack: the software.
        layer: seconds of a layer for one microbatch, forward and backward.
        ends: seconds of the embedding, the head and the loss for one microbatch, forward and backward.
        send_seconds: to send the residual stream of a microbatch to the next stage. Both stages wait for it.
    """
    schedule = plan.schedule
    layers = plan.layers / schedule.chunks
    last = schedule.stages - 1, schedule.chunks - 1
    all_ends = stack.ends == "all"
    forward, backward = (sum(part.values()) for part in layer)
    head_forward, head_backward = (sum(part.values()) for part in ends)

    def seconds(stage: int, op: Op) -> float:
        at_head = all_ends or (stage, op.chunk) == last
        if op.kind == "F":
            return layers * forward + (head_forward if at_head else 0.0) + send_seconds
        if op.kind == "W":
            return layers * backward * WEIGHTS_SHARE
        share = 1 - WEIGHTS_SHARE if schedule.splits_backward else 1.0
        return layers * backward * share + (head_backward if at_head else 0.0) + send_seconds

    starts = schedule.starts(seconds)
    spans = tuple(
        Span(f"stage {stage}", f"{op.kind}{op.microbatch}", start, seconds(stage, op))
        for (stage, op), start in starts.items()
    )
    makespan = max(span.begin_seconds + span.seconds for span in spans)
    if stack.lockstep:
        columns = zip(*schedule.table, strict=True)
        makespan = sum(max(seconds(stage, op) for stage, op in enumerate(column) if op) for column in columns)
    times = plan.train.microbatches
    at_ends = times * (schedule.chunks if all_ends else 1)
    sends = {"sends": 2 * times * schedule.chunks * send_seconds}
    busy = added(scaled(added(*layer), times * plan.layers), scaled(added(*ends), at_ends), sends)
    return added(busy, {"bubble": makespan - sum(busy.values())}), spans
