"""The predicted step as spans in lanes: what each pipeline stage does when, and what it is spent on."""

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.devices.topology import Topology
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.pipelined import passes
from benchmarks.seconds.predicted import StepSeconds
from benchmarks.seconds.timeline import Pass, added, scaled
from benchmarks.simulate.queues import COMPUTE, EXPOSED, IDLE, MEMORY, Span
from strategies.costs.predict import Cost

PASSES = "passes"
"""The lane of passes, and of what is done between and after them; the other lanes say what they are spent on."""
HOST = "host"
"""The lane of waits for the host: launches of kernels, and what a step takes whatever it does."""
LANES = {
    "matmul": COMPUTE,
    "attention": COMPUTE,
    "head": COMPUTE,
    "memory": MEMORY,
    "optimizer": MEMORY,
    "gathers": EXPOSED,
    "sums of layers": EXPOSED,
    "sums of ends": EXPOSED,
    "sends": EXPOSED,
    "gradients": EXPOSED,
    "launches": HOST,
    "fixed": HOST,
}
"""What a step is spent on -> its lane, as in a replayed step where that has it."""


def drawn(cost: Cost, machine: Machine, topology: Topology) -> Mapping[str, tuple[Span, ...]]:
    """What each stage does in the step that `predict_seconds` predicts.

    Returns:
        The spans of each stage by its name. Besides its passes, a stage has spans that fill the step from its begin to
        its end and do not overlap.
    """
    step = StepSeconds(cost, machine, topology)
    staged = cost.plan.staged
    found = [*(_stages(step) if staged else _alone(step))]
    end = max(each.end_seconds for each in found)
    stages = cost.plan.schedule.stages if staged else 1
    after = step.after(sum(step.layers().backward.values()))
    for name, seconds in {**after, "fixed": machine.constants.step_seconds}.items():
        if seconds:
            found += [Pass(stage, name, end, {name: seconds}) for stage in range(stages)]
            end += seconds
    names = [f"stage {stage}" for stage in range(stages)] if staged else ["step"]
    return {name: tuple(_spans(each for each in found if each.stage == at)) for at, name in enumerate(names)}


def _stages(step: StepSeconds) -> Iterator[Pass]:
    """Passes of all stages."""
    return passes(step.plan, step.machine.stack, step.layers(), step.ends(), step.send_seconds())


def _alone(step: StepSeconds) -> Iterator[Pass]:
    """Passes of a device without stages."""
    plan, layers, ends, first = step.plan, step.layers(), step.ends(), step.first_gather_seconds()
    inside, begin = [scaled(each, plan.layers) for each in (layers.forward, layers.backward)], 0.0
    forward = added({"gathers": first.forward}, inside[0], ends[0])
    backward = added(ends[1], inside[1], {"gathers": first.backward})
    for microbatch in range(plan.train.microbatches):
        for kind, parts in (("F", forward), ("B", backward)):
            yield Pass(0, f"{kind}{microbatch}", begin, parts)
            begin += sum(parts.values())


def _spans(of_stage: Iterable[Pass]) -> Iterator[Span]:
    """Spans of a stage: its passes, what they are spent on in turn, and the bubbles between them."""
    now = 0.0
    for each in sorted(of_stage, key=lambda each: each.begin_seconds):
        if each.begin_seconds - now > 1e-12:
            yield Span(IDLE, "bubble", now, each.begin_seconds - now)
        now = each.begin_seconds
        yield Span(PASSES, each.name, now, each.seconds)
        for name, seconds in each.parts.items():
            if seconds:
                yield Span(LANES[name], name, now, seconds)
                now += seconds
