"""A pipeline's passes, sends and ends take as long as on paper, and what shares a link takes turns."""

from collections import defaultdict
from cProfile import Profile
from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.simulate.layer import GATHERED, LayerEvents, Way
from benchmarks.simulate.links import bandwidth, group
from benchmarks.simulate.predict import predicted, read_rows
from benchmarks.simulate.queues import Parts, added
from benchmarks.simulate.stack import PAIR_SHARE
from benchmarks.simulate.stages import Stages
from benchmarks.simulate.step import Step
from strategies.config import TrainConfig
from strategies.costs.predict import predict
from strategies.gpt_config import GPTConfig
from tests.benchmarks.simulate.host import MESHMARK
from tests.benchmarks.simulate.ideal_machines import (
    CHIP,
    COMPUTING,
    LAYERS,
    MIXTURE,
    MODEL,
    SENDING,
    UNSTAGED,
    seconds,
    step,
    topology_of,
)
from tests.processes import ROOT

MANY = GPTConfig(layers=8, embed=128, heads=4, sequence=128)
PASSES = {
    # Two stages, two microbatches. Of a stage's part F=1 and B=2. Forward all parts but the last send for 1/4, backward
    # all but the first: f=5/4 and b=2 on stage 0, f'=1 and b'=9/4 on stage 1; with the head f'=3/2 and b'=13/4.
    # Stage 0: F0 F1 B0 B1; stage 1: F0 B0 F1 B1. Stage 1 begins at f and does not wait; B1 of stage 0 follows its last
    # pass: f + 2 (f' + b') + b.
    "1f1b": ("1f1b", False, {}, 0.5, 9.75),
    "1f1b, head on the last stage": ("1f1b", True, {"embedding_and_head": "first and last"}, 0.5, 12.75),
    "1f1b, head on all stages": ("1f1b", True, {"embedding_and_head": "all"}, 0.5, 14.25),
    # Chunks 0 and 1 on each stage, F=1 and B=2 of a chunk. Stage 0: F0 F1 F0' F1' B0' B1' B0 B1, stage 1: F0 F1 F0' B0'
    # F1' B1' B0 B1. F0' ends on stage 0 at 3f; then stage 1 runs F0' B0' F1' B1'; B1' of stage 0, B1 of stage 1 and B1
    # of stage 0 follow one another: 3f + 2 (f' + b') + 2 (b + 1/4) + b.
    "interleaved": ("interleaved", False, {}, 1.5, 16.75),
    "interleaved, head on the last stage": ("interleaved", True, {"embedding_and_head": "first and last"}, 1.5, 19.75),
    # The backward pass is split, b=5/4, b'=3/2 and w=3/4, which sends nothing. Stage 0: F0 F1 B0 W0 B1 W1; stage 1: F0
    # B0 F1 B1 W0 W1. B1 of stage 0 follows that of stage 1, which ends at f + 2 (f' + b'): 25/4 + b + w.
    "zb-h1": ("zb-h1", False, {}, 0.5, 8.25),
    # All stages exchange at the end of a tick. Ticks: F0; F1 F0; F1; B1; B1 B0; B0. After the first two and after the
    # fourth and the fifth something is sent. Each microbatch has the head's 1/2 + 1 on all stages.
    "lockstep": ("gpipe", True, {"lockstep": True, "embedding_and_head": "all"}, 1.0, 3 * 1 + 3 * 2 + 4 / 4 + 2 * 1.5),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pipeline_of_two_stages_is_as_on_paper(name):
    """Two stages and two microbatches take as long as the table of their passes says."""
    schedule, headed, changes, sends, total = PASSES[name]
    chunks = 2 if schedule == "interleaved" else 1
    model = GPTConfig(layers=2 * chunks, embed=128, heads=4, sequence=128)
    plan = predict("pipeline", model, "pipeline=2", TrainConfig(4, 2, schedule=schedule)).plan
    stack = replace(MESHMARK, **{"lockstep": False, **changes})
    work: dict[str, Parts] = {"F": {"matmul": 0.75, "sums": 0.25}, "B": {"matmul": 2.0}}
    if schedule == "zb-h1":
        work = {"F": {"matmul": 1.0}, "B": {"matmul": 0.25, "attention": 1.0}, "W": {"matmul": 0.75}}
    ends: dict[str, Parts] = {"F": {"head": 0.5}, "B": {"head": 1.0}} if headed else {}
    stages = Stages(plan, stack, work, ends, 0.25)
    parts = stages.parts
    assert sum(parts.values()) == pytest.approx(total)
    assert parts["sends"] == pytest.approx(sends)
    busy = 2 * (3 * chunks + (1.5 if headed else 0)) + sends
    assert parts["bubble"] == pytest.approx(total - busy)
    found = list(stages.passes())
    assert max(each.begin_seconds + sum(each.parts.values()) for each in found) == pytest.approx(total)
    names = [each.name for each in found if each.stage == 1 and each.name[0] in "FBW"]
    assert names == [str(op) for op in plan.schedule.orders[1]]


@pytest.mark.parametrize(("layers", "lacking"), [(16, 0), (15, 1), (14, 1), (13, 2)])
def test_the_last_stage_lacks_layers_and_has_the_head(layers, lacking):
    """Of four stages of four layers both ends share what is missing; of an odd number the last lacks more."""
    plan = predict("pipeline", replace(MANY, layers=layers), "pipeline=4", TrainConfig(4, 1)).plan
    stack = replace(MESHMARK, lockstep=False, embedding_and_head="first and last")
    parts = Stages(plan, stack, {"F": {"matmul": 4.0}, "B": {"matmul": 8.0}}, {"F": {"head": 1.0}}, 0.0).parts
    assert parts["matmul"] == pytest.approx(3 * (4 - lacking))
    assert sum(parts.values()) == pytest.approx(3 * (16 - lacking) + 1)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("tensors", [1, 2])
def test_a_split_backward_pass_takes_as_long_as_its_flops(remat, tensors):
    """Gradients of weights have their own matmuls and no sums; what is recomputed belongs to those of the inputs.

    The FLOPs are those of `Cost.passes`. Of short sequences attention is less than a thousandth of them.
    """
    short = replace(MODEL, sequence=4)
    cost = step("three_d", f"pipeline=8,tensor={tensors}", short, schedule="zb-h1", remat=remat, microbatches=16)
    work = Step(cost, COMPUTING, topology_of(cost)).stages.work
    flops = cost.plan.share.tokens / LAYERS / tensors / COMPUTING.best_rate(2)
    assert [parts["matmul"] for parts in work.values()] == pytest.approx(
        [flops * each for each in cost.passes], rel=1e-3
    )
    assert work["W"]["matmul"] == pytest.approx(flops * cost.passes[-1])
    assert work["W"].get("layer collectives", 0) == 0
    assert (work["B"].get("layer collectives", 0) > 0) == (tensors > 1)


def test_a_pair_of_passes_is_one_pass_in_lockstep():
    """A tick takes as long as on its slowest stage: of layers F=1 and B=2, of a pair 5/2. All stages have the head."""
    plan = predict("pipeline", replace(MANY, layers=8), "pipeline=4", TrainConfig(9, 9, schedule="dualpipe-v")).plan
    work = {"F": {"matmul": 1.0}, "B": {"matmul": 2.0}, "FB": {"matmul": 2.25, "sums": 0.25}}
    stages = Stages(plan, MESHMARK, work, {"F": {"head": 0.5}, "B": {"head": 1.0}}, 0.25)
    cells = [["".join(op.kind for op in cell) for cell in column] for column in zip(*plan.schedule.table, strict=True)]
    ticks = sum(max(sum(work[kinds].values()) for kinds in column if kinds) for column in cells)
    sends = plan.ticks.exchanges * 0.25
    assert stages.end_seconds == pytest.approx(ticks + 9 * 1.5 + sends)
    last = [column[-1] for column in cells]
    expected = {"head": 9 * 1.5, "sends": sends, "sums": 0.25 * last.count("FB"), "matmul": 2.25 * last.count("FB")}
    expected["matmul"] += last.count("F") + 2 * last.count("B")
    assert last.count("FB") > 0
    assert stages.parts == pytest.approx(expected | {"bubble": ticks + 9 * 1.5 + sends - sum(expected.values())})
    found = [*stages.passes()]
    assert max(each.begin_seconds + sum(each.parts.values()) for each in found) == pytest.approx(stages.end_seconds)
    ops = [op for each in found if each.stage == 3 and each.name[0] in "FB" for op in each.name.split("&")]
    assert ops == [str(op) for op in plan.schedule.orders[3]]


def pair_and_passes(machine, model, halves):
    """Seconds of a stage's pair in lockstep, by what they are spent on, and those of its two passes together."""
    options = {"schedule": "dualpipe-v", "microbatches": 8, "dispatch": "all_to_all", "halves": halves}
    cost = step("three_d", "pipeline=2,expert=4", model, **options)
    work = Step(cost, machine, topology_of(cost)).work
    return work["FB"], added(work["F"], work["B"])


@pytest.mark.parametrize("halves", ["on", "off"])
def test_a_pair_of_passes_hides_what_it_sends_on_gpus(halves):
    """Its kernels take as long as those of both passes, and it waits for a share of what they send, halves or not."""
    _, apart = pair_and_passes(COMPUTING, MIXTURE, "off")
    pair, _ = pair_and_passes(COMPUTING, MIXTURE, halves)
    assert apart["layer collectives"] > 0
    assert pair["layer collectives"] == pytest.approx((1 - PAIR_SHARE) * apart["layer collectives"])
    assert {**pair, "layer collectives": 0} == pytest.approx({**apart, "layer collectives": 0})


@pytest.mark.parametrize(
    ("platform", "layers"), [("tpu", 8), ("cpu", 8), ("cuda", 7)], ids=["tpu", "cpu", "a part lacks a layer"]
)
def test_a_pair_of_passes_hides_nothing_elsewhere(platform, layers):
    """Nor where a slot of a stage is empty: there its passes have a loop each."""
    elsewhere = replace(COMPUTING, chip=replace(COMPUTING.chip, platform=platform))
    pair, apart = pair_and_passes(elsewhere, replace(MIXTURE, layers=layers), "off")
    assert pair == pytest.approx(apart)


def test_pipelines_wait_for_their_gathers():
    """A stage has no layer ahead whose weights it could gather, so it waits for all of them."""
    cost = step("three_d", "fsdp=4,pipeline=2")
    waited = [seconds(cost, COMPUTING, overlaps=overlaps)["gathers"] for overlaps in (("gathers",), ())]
    sent = sum(sum(parts.values()) for (_, axes), parts in cost.sent.items() if axes == ("fsdp",))
    assert waited[0] == waited[1]
    assert sent / 2 < waited[0] * 450e9 <= sent


@pytest.mark.parametrize("name", UNSTAGED)
def test_a_link_takes_the_time_of_all_that_it_sends(name):
    """Whatever runs beside each other: with a GPU on each host all traffic shares one link, and none of it is free."""
    strategy, mesh, options = UNSTAGED[name]
    cost = step(strategy, mesh, sequence_parallel=False, **options)
    devices = Topology("h100", (cost.plan.mesh.size, 1))
    wanted = sum(
        float(sum(parts.values())) / bandwidth(CHIP, kind, group(devices, cost.plan.mesh, axes))
        for (kind, axes), parts in cost.sent.items()
    )
    found = sum(seconds(cost, SENDING, devices, overlaps=MESHMARK.overlaps).values())
    assert found >= wanted * (1 - 1e-6)  # scalars, such as the loss, may be left out


@pytest.mark.parametrize("ends", ["first and last", "all"])
@pytest.mark.parametrize(
    ("schedule", "microbatches", "sends", "layers", "off"),
    [
        *(("interleaved", m, 0.0, 8, 1e-9) for m in (4, 32)),
        *(("1f1b", m, sends, layers, 1e-9) for m in (2, 32) for sends in (0.1, 1.0) for layers in (8, 7)),
        *((name, 8, 0.1, 8, 1e-9) for name in ("gpipe", "zb-h1")),
        # Of several chunks that differ, pauses at the begin are longer than later ones.
        *(("interleaved", 32, sends, layers, 0.01) for sends, layers in ((0.0, 15), (0.1, 8))),
    ],
)
def test_a_long_schedule_takes_as_long_as_its_passes(schedule, microbatches, sends, layers, off, ends):
    """A microbatch for each stage, and then what the slowest stage takes, end with the passes one by one."""
    train = TrainConfig(64, microbatches, schedule=schedule, chunks=2)
    plan = predict("pipeline", replace(MANY, layers=layers), "pipeline=4", train).plan
    stack = replace(MESHMARK, lockstep=False, embedding_and_head=ends)
    work: dict[str, Parts] = {"F": {"matmul": 1.0}, "B": {"matmul": 2.0}}
    work |= {"B": {"matmul": 1.0}, "W": {"matmul": 1.0}} if schedule == "zb-h1" else {}
    stages = Stages(plan, stack, work, {"F": {"head": 0.25}, "B": {"head": 0.5}}, sends)
    last = max(one.begin_seconds + sum(one.parts.values()) for one in stages.passes())
    assert stages.end_seconds == pytest.approx(last, rel=off)


def calls_of(row):
    """Functions that the prediction of a row calls, when the modules have seen one like it."""
    predicted(row)
    profile = Profile()
    profile.runcall(predicted, row)
    return sum(entry.callcount for entry in profile.getstats())


def test_predictions_take_few_calls_however_many_microbatches_there_are():
    """The costliest published row takes at most 12,000 calls of functions, some 2 ms, and as many for 16 batches."""
    rows = read_rows(ROOT / "results" / "published" / "dgxc_benchmarking.csv")
    costliest = max(rows, key=calls_of)
    calls = calls_of(costliest)
    assert calls <= 12_000
    more = calls_of({**costliest, "batch_size": str(16 * int(costliest["batch_size"]))})
    assert more == pytest.approx(calls, rel=0.02)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_passes_send_what_a_step_sends(remat, monkeypatch):
    """Leading dense layers of a pipeline, forward twice and backward once, send as much as formulas count for them."""
    sent, event = defaultdict(float), LayerEvents.event

    def recorded(*given):
        sent[given[2], given[3]] += runs * float(given[4])
        return event(*given)

    monkeypatch.setattr(LayerEvents, "event", recorded)
    model = replace(MANY, block="llama", layers=10, dense_layers=2, experts=8, expert_mlp=64)
    train = TrainConfig(batch_size=8, microbatches=2, remat=remat, sequence_parallel=False)
    cost = predict("three_d", model, "fsdp=2,pipeline=2,tensor=2", train, "cuda")
    passes = Step(cost, COMPUTING, topology_of(cost)).layer
    times: dict[Way, int] = {"forward": 4 + 2 * 2, "backward": 4 + 2}
    for way, layers in times.items():
        runs = 2 * layers  # of two microbatches
        list(passes.events(way))
    counted = defaultdict(float)
    sharded = {*GATHERED["forward"], *GATHERED["backward"]}
    for term in cost.traffic:
        if term.what == "layers" or (passes.is_sharded(term) and term.what in sharded):
            counted[term.kind, term.axes] += float(term.sent_bytes)
    assert sent == pytest.approx(counted)
