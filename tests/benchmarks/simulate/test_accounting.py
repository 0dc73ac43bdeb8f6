"""Predicted seconds account for all work and all traffic once: laws that were derived by hand."""

from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.simulate.kernels import layer
from benchmarks.simulate.links import bandwidth, group
from benchmarks.simulate.step import bound_seconds, predict_seconds
from strategies.core.traffic import Bytes
from tests.benchmarks.simulate.host import MEGATRON, MESHMARK, MPT
from tests.benchmarks.simulate.ideal_machines import (
    BATCH,
    CHIP,
    COMPUTING,
    EMBED,
    H100,
    HIDES_NOTHING,
    IDEAL,
    LAYERS,
    MICROBATCH,
    PARAMETERS,
    SENDING,
    TIMES,
    TOKENS,
    UNSTAGED,
    VOCAB,
    changed,
    seconds,
    step,
    topology_of,
)


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("name", UNSTAGED)
def test_a_step_without_compute_takes_as_long_as_its_traffic(name, remat, sequence_parallel):
    """If kernels take no time and nothing is hidden, a step takes its bytes over the bandwidths of their links.

    Of three gathers of a layer's inputs one runs beside a matmul, whatever the stack overlaps.
    """
    strategy, mesh, options = UNSTAGED[name]
    cost = step(strategy, mesh, remat=remat, sequence_parallel=sequence_parallel, **options)
    wanted = 0.0
    for (kind, axes), parts in cost.sent.items():
        bytes_of: dict[str, Bytes | float] = {**parts}
        if kind == "all_gather" and "layers" in bytes_of:
            bytes_of["layers"] *= 2 / 3
        wanted += sum(bytes_of.values()) / bandwidth(CHIP, kind, group(topology_of(cost), cost.plan.mesh, axes))
    found = sum(seconds(cost, SENDING, **HIDES_NOTHING).values())
    assert found == pytest.approx(wanted, rel=1e-6)  # scalars, such as the loss, may be left out


@pytest.mark.parametrize("stack", [MEGATRON, MPT, MESHMARK], ids=lambda stack: stack.name)
def test_recomputed_matmuls_are_counted_by_hand(stack):
    """A token's matmuls with weights take 24 D^2 FLOPs in a layer forward, and 16 D^2 without the last of them.

    Backward they take twice as many. Scores take 4 T D forward: where they are not fused the backward pass takes twice
    as many, and a fused kernel 5/2 as many, of half of the scores. What is recomputed comes on top.
    """
    weights, scores = 24 * EMBED**2 * MICROBATCH, 4 * TOKENS * EMBED * MICROBATCH
    again = 16 * EMBED**2 * MICROBATCH
    fused = stack.attention == "fused"
    wanted = {
        "none": (3 * weights, 3.5 * scores / 2 if fused else 3 * scores),
        "dots": (3 * weights, 3.5 * scores / 2 if fused else 4 * scores),
        "full": (3 * weights + again, 4.5 * scores / 2 if fused else 4 * scores),
    }
    for remat, (projections, of_scores) in wanted.items():
        cost = step("single", "data=1", remat=remat)
        kernels = [each for way in vars(layer(cost.plan, stack)).values() for each in way]
        found = {kind: sum(each.flops for each in kernels if each.kind == kind) for kind in ("matmul", "attention")}
        of_attention = {"matmul": projections, "attention": of_scores}
        assert found == pytest.approx(of_attention if fused else {"matmul": projections + of_scores, "attention": 0})
        in_formulas = cost.flops["recomputed"] - (2 * cost.flops["attention again"] if remat == "full" else 0)
        if fused:
            assert (found["matmul"] - 3 * weights) * LAYERS * TIMES == pytest.approx(in_formulas)
        parts = seconds(cost, replace(COMPUTING, stack=stack))
        whole = sum(found.values()) * LAYERS * TIMES / COMPUTING.best_rate(2)
        assert parts["matmul"] + parts.get("attention", 0) == pytest.approx(whole)
        logits = 6 * EMBED * VOCAB * MICROBATCH * TIMES
        assert parts["head"] == pytest.approx(logits / COMPUTING.best_rate(2))


def test_stages_send_each_microbatch_once_forward_and_once_backward():
    """The last stage sends its part of the residual stream for each microbatch and chunk, but not the output."""
    for stack, schedule, tensors in ((MPT, "1f1b", 1), (MPT, "interleaved", 1), (MEGATRON, "1f1b", 2)):
        mesh = f"pipeline=4,tensor={tensors}" if tensors > 1 else "pipeline=4"
        cost = step("three_d", mesh, schedule=schedule, microbatches=8)
        sent = 8 * (3 if schedule == "interleaved" else 1) * (BATCH // 8 * TOKENS * EMBED * 2) / tensors
        its, one_host = replace(SENDING, stack=stack), Topology("h100", (1, 4 * tensors))
        assert predict_seconds(cost, its, one_host).parts["sends"] == pytest.approx(sent / 450e9)
    cost = step("pipeline", "pipeline=4", microbatches=8)
    sent = cost.sent["permute", ("pipeline",)]["stages"]
    parts = seconds(cost, SENDING, lockstep=True)
    assert parts["sends"] == pytest.approx(sent / 450e9)
    ends = cost.sent["all_reduce", ("pipeline",)]
    assert parts["head collectives"] == pytest.approx((ends["embedding"] + ends["ends"]) / 450e9)
    late, now = (seconds(cost, its, lockstep=False)["sends"] for its in (changed(SENDING, link_seconds=1e-3), SENDING))
    assert late - now == pytest.approx(8 * 1e-3)


def test_the_first_and_the_last_stage_have_the_ends_alone():
    """The last of S stages takes S times as long for the head as all stages do that split its vocabulary.

    It sends what a tensor axis without stages sends.
    """
    staged, alone = step("three_d", "pipeline=4,tensor=2", microbatches=4), step("tensor", "tensor=2", microbatches=4)
    shared = seconds(staged, COMPUTING, embedding_and_head="all", lockstep=False)["head"]
    found = seconds(staged, COMPUTING, embedding_and_head="first and last", lockstep=False)["head"]
    assert found == pytest.approx(4 * shared)
    wanted = seconds(alone, SENDING)["head collectives"]
    found = seconds(staged, SENDING, embedding_and_head="first and last", lockstep=False)["head collectives"]
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("strategy", "mesh", "parts"),
    [("single", "data=1", 1), ("data", "data=16", 1), ("zero1", "data=16", 16), ("hsdp", "data=2,fsdp=8", 8)],
)
def test_the_optimizer_takes_the_time_of_the_parameters_that_a_device_updates(strategy, mesh, parts):
    """An update moves its bytes for each parameter; sharded parameters and ZeRO's are divided by the devices."""
    found = seconds(step(strategy, mesh), IDEAL, kernels=replace(MESHMARK.kernels, optimizer_bytes=62))["optimizer"]
    assert found == pytest.approx(62 * PARAMETERS / parts / 3350e9)


def test_gathers_are_hidden_behind_the_compute_of_a_layer():
    """Longer gathers are waited for by what they exceed compute; of shorter ones only the first and the last are seen.

    The first gather and the last scatter together are one to two halves of what is sent for a layer.
    """
    cost = step("fsdp", "fsdp=8", reduce_dtype="bfloat16")
    sharded = {kind: cost.sent[kind, ("fsdp",)] for kind in ("all_gather", "reduce_scatter")}
    names = "weights", "weights again", "gradients"
    sent = sum(parts.get(name, 0) for parts in sharded.values() for name in names)
    exposed, compute = {}, {}
    for rate in (1, 2**-4, 2**-10):
        its = replace(COMPUTING, chip=replace(COMPUTING.chip, link_bytes_per_second=450e9 * rate))
        parts = seconds(cost, its, overlaps=("gathers",))
        exposed[rate], compute[rate] = parts["gathers"], parts["matmul"] + parts["attention"]
        assert seconds(cost, its, overlaps=())["gathers"] == pytest.approx(sent / 450e9 / rate)
    assert sent / 450e9 < compute[1] / 2
    assert sent / 2 / LAYERS <= exposed[1] * 450e9 <= sent / LAYERS
    assert exposed[2**-10] == pytest.approx(2**10 * (sent / 450e9 + exposed[1]) - compute[1])


def test_sums_of_gradients_are_hidden_behind_the_backward_pass():
    """Longer sums are waited for by what they exceed one backward pass; shorter ones are not waited for.

    Backward take matmuls two of their three parts, and fused attention five of its seven.
    """
    cost, beside = (step("data", "data=8", microbatches=1, reduce=reduce) for reduce in ("step", "layer"))
    sent = 2 * 4 * PARAMETERS * 7 / 8
    for rate in (4, 2**-8):
        its = replace(COMPUTING, chip=replace(COMPUTING.chip, link_bytes_per_second=450e9 * rate))
        whole = sent / 450e9 / rate
        parts = seconds(cost, its, overlaps=())
        assert parts["gradients"] == pytest.approx(whole)
        backward = parts["matmul"] * 2 / 3 + parts["attention"] * 5 / 7
        left = seconds(beside, its, overlaps=()).get("gradients", 0.0)
        assert left == pytest.approx(max(0.0, whole - backward), rel=1e-6, abs=1e-8)
        assert (whole > backward) == (rate < 1)


CALLS = {
    # A layer gathers and scatters for both branches, forward and backward; embedding and head do so once each.
    "tensor": ("tensor", {}, TIMES * (LAYERS * 8 + 4)),
    "tensor, sums": ("tensor", {"sequence_parallel": False}, TIMES * (LAYERS * 4 + 2)),
    # The sum of attention is repeated.
    "tensor, repeated": ("tensor", {"sequence_parallel": False, "remat": "full"}, TIMES * (LAYERS * 5 + 2)),
    # A layer's weights are gathered, gathered again, and their gradients scattered.
    "fsdp": ("fsdp", {}, TIMES * LAYERS * 3),
    "fsdp that keeps weights": ("fsdp", {"regather": False}, TIMES * LAYERS * 2),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("shape", "links", "doublings"), [((1, 8), 7, 0), ((2, 8), 7, 1), ((4, 4), 3, 2), ((16, 1), 0, 4)]
)
def test_latency_is_that_of_each_call(name, shape, links, doublings):
    """A call waits for each step of a ring inside its host, and for each doubling of the number of hosts."""
    strategy, options, calls = CALLS[name]
    topology = Topology("h100", shape)
    cost = step(strategy, f"{strategy}={shape[0] * shape[1]}", **options)
    without = sum(seconds(cost, SENDING, topology, **HIDES_NOTHING).values())
    for constant, steps in (("link_seconds", links), ("network_seconds", doublings)):
        late = sum(seconds(cost, changed(SENDING, **{constant: 1e-3}), topology, **HIDES_NOTHING).values())
        assert late - without == pytest.approx(calls * steps * 1e-3)


@pytest.mark.parametrize(("remat", "kernels"), [("none", 12 + 25), ("full", 12 + 25 + 12)])
def test_a_layer_waits_for_launches_that_take_longer_than_its_kernels(remat, kernels):
    """If launches take long, a layer takes a launch for each kernel; if they take less than kernels, they cost none."""
    cost = step("single", "data=1", remat=remat)
    slow = seconds(cost, replace(changed(SENDING, kernel_seconds=1e-3), stack=MESHMARK))
    assert slow["launches"] == pytest.approx(TIMES * LAYERS * kernels * 1e-3)
    assert "launches" not in seconds(cost, replace(changed(IDEAL, kernel_seconds=1e-9), stack=MESHMARK))
    assert seconds(cost, changed(IDEAL, step_seconds=1.0))["fixed"] == 1


def test_the_bound_is_the_longer_of_compute_and_network():
    """Matmuls at the peak take longer inside a host; gradients take longer over a slow network.

    A token takes 6 FLOPs for each weight, and for each of seven matmuls of scores 2 D for half of the keys.
    """
    weights = LAYERS * 12 * EMBED**2 + EMBED * VOCAB
    flops = BATCH * TOKENS * (6 * weights + LAYERS * 7 * 2 * EMBED * TOKENS / 2)
    compute = flops / 2 / 989e12
    gradients = 2 * 4 * PARAMETERS / 2
    cost = step("data", "data=2")
    assert bound_seconds(cost, H100, Topology("h100", (1, 2))) == pytest.approx(compute)
    in_float32 = step("data", "data=2", dtype="float32")
    assert bound_seconds(in_float32, H100, Topology("h100", (1, 2))) == pytest.approx(flops / 2 / 67e12, rel=1e-2)
    slow = H100.with_changes({"inter_host_bandwidth": "1GB/s"})
    assert bound_seconds(cost, slow, Topology("h100", (2, 1))) == pytest.approx(gradients / 1e9, rel=1e-6)
    staged = bound_seconds(step("pipeline", "pipeline=4", microbatches=8), H100, Topology("h100", (1, 4)))
    assert staged == pytest.approx(flops / 4 / 989e12 * (8 + 3) / 8)
