"""Predicted seconds account for all work and all traffic once: laws that were derived by hand."""

from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.seconds.kernels import Kernel, head, layer, matmul
from benchmarks.seconds.machines import machine, machine_for
from benchmarks.seconds.network import bandwidth, group
from benchmarks.seconds.predicted import bound_seconds
from benchmarks.seconds.stack import MEGATRON, MESHMARK, MPT
from tests.benchmarks.seconds.ideal import (
    BATCH,
    CHIP,
    COMPUTING,
    EMBED,
    H100,
    HEADS,
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
@pytest.mark.parametrize(
    ("name", "repeats"), [*((each, "all but the last") for each in UNSTAGED), ("tensor", "all"), ("three_d", "all")]
)
def test_a_step_without_compute_takes_as_long_as_its_traffic(name, remat, sequence_parallel, repeats):
    """If kernels take no time and nothing is hidden, a step takes its bytes over the bandwidths of their links.

    Of three gathers of a layer's inputs one runs beside a matmul, whatever the stack overlaps. A stack that repeats
    whole layers sums six times for each layer where the formulas count five: twice forward, once more for attention
    when it is repeated, and twice backward.
    """
    strategy, mesh, options = UNSTAGED[name]
    cost = step(strategy, mesh, remat=remat, sequence_parallel=sequence_parallel, **options)
    wanted = 0.0
    for (kind, axes), parts in cost.sent.items():
        bytes_of: dict[str, float] = dict(parts)
        if kind == "all_gather":
            bytes_of["layers"] = bytes_of.get("layers", 0) * 2 / 3
        elif "layers" in bytes_of and remat == "full" and repeats == "all":
            bytes_of["layers"] *= 6 / 5
        wanted += sum(bytes_of.values()) / bandwidth(CHIP, kind, group(topology_of(cost), cost.plan.mesh, axes))
    found = sum(seconds(cost, SENDING, **{**HIDES_NOTHING, "repeats": repeats}).values())
    assert found == pytest.approx(wanted, rel=1e-6)  # scalars, such as the loss, may be left out


@pytest.mark.parametrize("stack", [MEGATRON, MPT, MESHMARK], ids=lambda stack: stack.name)
def test_recomputed_matmuls_are_counted_by_hand(stack):
    """A token's matmuls with weights take 24 D^2 FLOPs in a layer forward, and 16 D^2 without the last of them.

    Backward they take twice as many. Scores take 4 T D forward: where they are not fused the backward pass takes twice
    as many, and a fused kernel 5/2 as many, of half of the scores. What is recomputed comes on top.
    """
    weights, scores = 24 * EMBED**2 * MICROBATCH, 4 * TOKENS * EMBED * MICROBATCH
    again = weights if stack.repeats == "all" else 16 * EMBED**2 * MICROBATCH
    fused = stack.fused_attention
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
        if stack.repeats != "all" and fused:
            assert (found["matmul"] - 3 * weights) * LAYERS * TIMES == pytest.approx(in_formulas)
        parts = seconds(cost, replace(COMPUTING, stack=stack))
        whole = sum(found.values()) * LAYERS * TIMES / COMPUTING.matmul_flops_per_second
        assert parts["matmul"] + parts.get("attention", 0) == pytest.approx(whole)


def test_attention_is_causal_if_it_is_fused():
    """Forward there are two matmuls of T^2 / 2 pairs, and backward five; each has 2 FLOPs for a pair and a feature."""
    pairs = BATCH // TIMES * TOKENS**2 / 2
    for mesh, devices in (("data=1", 1), ("tensor=4", 4), ("context=4", 4)):
        strategy = "single" if devices == 1 else mesh.partition("=")[0]
        kernels = layer(step(strategy, mesh).plan, MESHMARK)
        ways = kernels.forward, kernels.backward
        found = [sum(each.flops for each in way if each.kind == "attention") for way in ways]
        assert found == pytest.approx([matmuls * 2 * pairs * EMBED / devices for matmuls in (2, 5)])


@pytest.mark.parametrize(
    ("stack", "residual", "hidden", "scores"),
    [(MESHMARK, (20, 28), (4, 6), (0, 0)), (MPT, (20, 32), (4, 6), (0, 0)), (MEGATRON, (22, 46), (4, 8), (9, 11))],
)
def test_bytes_between_matmuls_are_counted_by_hand(stack, residual, hidden, scores):
    """A layer moves bytes for each element of the residual stream, of the MLP, and of scores that leave the chip.

    A tensor axis splits all of them, the residual stream only with sequence parallelism. Of float32 there are twice as
    many. Recomputation repeats those of the forward pass; selective recomputation only those of scores, if there are.
    """
    elements = MICROBATCH * EMBED
    for tensors, split, options in ((1, 1, {}), (4, 4, {}), (4, 1, {"sequence_parallel": False})):
        for dtype, scale in (("bfloat16", 1), ("float32", 2)):
            strategy = "single" if tensors == 1 else "tensor"
            mesh = "data=1" if tensors == 1 else "tensor=4"
            forward, backward = (
                (a / split + 4 * b / tensors + c * HEADS * TOKENS / EMBED / tensors) * elements * scale
                for a, b, c in zip(residual, hidden, scores, strict=True)
            )
            selected = scores[0] * HEADS * TOKENS * MICROBATCH / tensors * scale if any(scores) else forward
            for remat, again in (("none", 0), ("dots", selected), ("full", forward)):
                kernels = layer(step(strategy, mesh, remat=remat, dtype=dtype, **options).plan, stack)
                ways = kernels.forward, kernels.backward
                found = [sum(each.moved_bytes for each in way if each.kind == "memory") for way in ways]
                assert found == pytest.approx([forward, backward + again])
    loss = [each for way in head(step("single", "data=1").plan, stack, 4) for each in way if each.kind == "memory"]
    assert sum(each.moved_bytes for each in loss) == pytest.approx(stack.logit_bytes * MICROBATCH * VOCAB / 4)


def test_a_kernel_takes_the_time_of_its_bytes_or_of_its_flops():
    """A pass over memory takes its bytes over the bandwidth reached, a matmul the longer of its bytes and its FLOPs."""
    its = changed(IDEAL, memory_efficiency=0.5, matmul_efficiency=0.5, attention_efficiency=0.25, matmul_dim=64.0)
    peak, moved = its.matmul_flops_per_second, 3350e9
    assert Kernel("memory", 0, moved).seconds(its) == pytest.approx(2)
    assert Kernel("attention", peak, 0).seconds(its) == pytest.approx(4)
    assert Kernel("attention", peak, 3 * moved).seconds(its) == pytest.approx(6)
    large, thin = matmul(8192, 4096, 2048, 2), matmul(8192, 4096, 1, 2)
    assert large.flops == 2**37
    assert large.seconds(its) == pytest.approx(2**38 / peak * (1 + 64 / 2048))
    assert thin.moved_bytes == 2 * (8192 + 4096 + 2**25)
    assert thin.seconds(changed(its, matmul_dim=0.0)) == pytest.approx(2 * thin.moved_bytes / moved)


@pytest.mark.parametrize(
    ("strategy", "mesh", "parts"),
    [
        ("single", "data=1", 1),
        ("data", "data=16", 1),
        ("zero1", "data=16", 16),
        ("fsdp", "fsdp=16", 16),
        ("hsdp", "data=2,fsdp=8", 8),
    ],
)
def test_the_optimizer_takes_the_time_of_the_parameters_that_a_device_updates(strategy, mesh, parts):
    """An update moves its bytes for each parameter; sharded parameters and ZeRO's are divided by the devices.

    To accumulate gradients of microbatches takes bytes for all parameters that the device holds.
    """
    held = PARAMETERS / (1 if strategy == "zero1" else parts)
    for times in (1, 4):
        cost = step(strategy, mesh, microbatches=times)
        found = seconds(cost, IDEAL, optimizer_bytes=62, accumulation_bytes=12)["optimizer"]
        accumulated = 12 * times * held if times > 1 else 0
        assert found == pytest.approx((62 * PARAMETERS / parts + accumulated) / 3350e9)


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
        parts = seconds(cost, its, prefetches=True)
        exposed[rate], compute[rate] = parts["gathers"], parts["matmul"] + parts["attention"]
        assert seconds(cost, its, prefetches=False)["gathers"] == pytest.approx(sent / 450e9 / rate)
    assert sent / 450e9 < compute[1] / 2
    assert sent / 2 / LAYERS <= exposed[1] * 450e9 <= sent / LAYERS
    assert exposed[2**-10] == pytest.approx(2**10 * (sent / 450e9 + exposed[1]) - compute[1])
    assert exposed[2**-10] > compute[1]
    assert compute[1] == compute[2**-10]


@pytest.mark.parametrize("times", [1, 4])
def test_sums_of_gradients_are_hidden_behind_the_last_backward_pass(times):
    """Longer sums are waited for by what they exceed one backward pass; shorter ones are not waited for.

    Backward take matmuls two of their three parts, and fused attention five of its seven.
    """
    cost = step("data", "data=8", microbatches=times)
    sent = 2 * 4 * PARAMETERS * 7 / 8
    for rate in (4, 2**-8):
        its = replace(COMPUTING, chip=replace(COMPUTING.chip, link_bytes_per_second=450e9 * rate))
        whole = sent / 450e9 / rate
        parts = seconds(cost, its, overlaps_gradients=False)
        assert parts["gradients"] == pytest.approx(whole)
        backward = (parts["matmul"] * 2 / 3 + parts["attention"] * 5 / 7) / times
        left = seconds(cost, its, overlaps_gradients=True).get("gradients", 0.0)
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
    slow = seconds(cost, changed(SENDING, kernel_seconds=1e-3))
    assert slow["launches"] == pytest.approx(TIMES * LAYERS * kernels * 1e-3)
    assert "launches" not in seconds(cost, changed(IDEAL, kernel_seconds=1e-9))


def test_the_bound_is_the_longer_of_compute_and_network():
    """Matmuls at the peak take longer inside a host; gradients take longer over a slow network.

    A token takes 6 FLOPs for each weight, and for each of seven matmuls of scores 2 D for three quarters of the keys.
    """
    weights = LAYERS * 12 * EMBED**2 + EMBED * VOCAB
    flops = BATCH * TOKENS * (6 * weights + LAYERS * 7 * 2 * EMBED * TOKENS * 3 / 4)
    compute = flops / 2 / 989e12
    gradients = 2 * 4 * PARAMETERS / 2
    cost = step("data", "data=2")
    assert bound_seconds(cost, H100, Topology("h100", (1, 2))) == pytest.approx(compute)
    slow = H100.with_changes({"inter_host_bandwidth": "1GB/s"})
    assert bound_seconds(cost, slow, Topology("h100", (2, 1))) == pytest.approx(gradients / 1e9, rel=1e-6)
    staged = bound_seconds(step("pipeline", "pipeline=4", microbatches=8), H100, Topology("h100", (1, 4)))
    assert staged == pytest.approx(flops / 4 / 989e12 * (8 + 3) / 8)


def test_a_machine_is_chosen_by_the_number_of_hosts():
    """Some files are for one host of a kind of device, and others for clusters of it."""
    for hosts, name in ((1, "a100_megatron_host"), (2, "a100_megatron_cluster"), (128, "a100_megatron_cluster")):
        assert machine_for("a100", "Megatron-LM", hosts) == machine(name, "a100")
    assert machine_for("h100", "PyTorch FSDP", 16) == machine("h100_fsdp", "h100")
