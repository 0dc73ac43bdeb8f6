"""The predicted step as spans: what fills it, and that nothing starts before what it needs."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.devices.topology import CPU, Topology
from benchmarks.simulate.machines import machine
from benchmarks.simulate.queues import IDLE, trace
from benchmarks.simulate.step import LANES, PASSES, Step, predict_seconds
from strategies.config import TrainConfig
from strategies.costs.predict import predict
from strategies.gpt_config import GPTConfig
from tests.benchmarks.simulate.host import MACHINE

MODEL = GPTConfig(layers=16, embed=512, heads=8, sequence=512)
STEPS = {
    "fsdp": ("fsdp=8", {}),
    "tensor": ("tensor=8", {}),
    "pipeline": ("pipeline=8", {"schedule": "1f1b", "microbatches": 8}),
    "three_d": ("data=2,pipeline=2,tensor=2", {"schedule": "zb-h1", "microbatches": 4}),
}
PIPELINES = [
    ("pipeline=4", schedule, microbatches, chunks)
    for schedule, microbatches, chunks in (("gpipe", 4, 1), ("1f1b", 8, 1), ("interleaved", 8, 2), ("zb-h1", 8, 1))
]


def cost_of(strategy, mesh, **options):
    """A step of 16 sequences."""
    return predict(strategy, MODEL, mesh, TrainConfig(16, **options), None)


def machines():
    """Stages in lockstep, stages that wait only for what they need, and hosts of one CPU device."""
    return {
        "meshmark": (machine("meshmark_gpus", "h100"), Topology.parse("h100:1x8")),
        "Megatron-LM": (machine("a100_megatron"), Topology.parse("a100_80gb:1x8")),
        "hosts": (MACHINE, Topology(CPU, (8, 1))),
    }


@pytest.mark.parametrize("name", machines())
@pytest.mark.parametrize("strategy", STEPS)
def test_spans_fill_the_step(strategy, name):
    """In each stage spans follow one another from its begin to its predicted end, and neither they nor passes overlap.

    What the last stage is drawn to spend on each part is what the prediction says, and in lockstep that of all. The
    last event of the trace, the sum of the parts, and the sum of the passes that wait for each other from the end back
    to the begin are the same time.
    """
    its, topology = machines()[name]
    mesh, options = STEPS[strategy]
    cost = cost_of(strategy, mesh, **options)
    predicted = predict_seconds(cost, its, topology)
    parts, total = predicted.parts, predicted.step_seconds
    stages = Step(cost, its, topology).spans()
    assert len(stages) == cost.plan.mesh.sizes.get("pipeline", 1)
    for spans in stages.values():
        own = [span for span in spans if span.lane != PASSES]
        assert own[0].begin_seconds == 0
        for one, other in pairwise(own):
            assert one.begin_seconds + one.seconds == pytest.approx(other.begin_seconds)
        assert own[-1].begin_seconds + own[-1].seconds == pytest.approx(total)
        for one, other in pairwise(span for span in spans if span.lane == PASSES):
            assert one.begin_seconds + one.seconds <= other.begin_seconds + 1e-9
        assert {span.lane for span in own} <= {IDLE, *LANES.values()}
    for spans in [*stages.values()][0 if its.stack.lockstep else -1 :]:
        spent = defaultdict(float)
        for span in spans:
            if span.lane != PASSES:
                spent[span.name] += span.seconds
        assert dict(spent) == pytest.approx(parts)
    events = trace("prediction", strategy, name, stages)["traceEvents"]
    assert max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") == pytest.approx(1e6 * total)
    passes = [span for spans in stages.values() for span in spans if span.lane == PASSES]
    now, path = total, 0.0
    while now > 1e-9 * total:
        last = next(each for each in passes if each.begin_seconds + each.seconds == pytest.approx(now, rel=1e-9))
        now, path = last.begin_seconds, path + last.seconds
    assert path == pytest.approx(total)


@pytest.mark.parametrize("name", ["meshmark", "Megatron-LM"])
@pytest.mark.parametrize(("mesh", "schedule", "microbatches", "chunks"), PIPELINES)
def test_no_pass_starts_before_its_input_arrives(mesh, schedule, microbatches, chunks, name):
    """A pass starts when the pass that it needs has ended on the other stage, and what that made has been sent."""
    its, topology = machines()[name]
    topology = replace(topology, shape=(1, 4))
    options = {"chunks": chunks} if schedule == "interleaved" else {}
    cost = cost_of("pipeline", mesh, schedule=schedule, microbatches=microbatches, **options)
    stages = Step(cost, its, topology).spans()
    at = {(stage, span.name): span for stage, spans in stages.items() for span in spans if span.lane == PASSES}
    sends = [span for span in stages["stage 0"] if span.lane == PASSES and span.name == "sends"]
    table = cost.plan.schedule
    checked = 0
    for stage, order in enumerate(table.orders):
        for op in order:
            source, need = table.needs(stage, op)
            if (source, need) == (stage, op):
                continue
            made, used = at[f"stage {source}", str(need)], at[f"stage {stage}", str(op)]
            arrives = made.begin_seconds + made.seconds
            if its.stack.lockstep and source != stage:
                later = [each for each in sends if each.begin_seconds >= arrives - 1e-12]
                arrives = min(each.begin_seconds + each.seconds for each in later)
            assert arrives <= used.begin_seconds + 1e-12
            checked += 1
    assert checked > 4 * microbatches
