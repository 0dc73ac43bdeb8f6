"""Kernels of a layer have the FLOPs and the bytes that were counted by hand, and take their time."""

from dataclasses import replace

import pytest

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import Topology
from benchmarks.simulate.kernels import Kernel, head, layer, matmul
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import bound_seconds, predict_seconds
from strategies import PRESETS, STRATEGIES
from strategies.config import TrainConfig
from strategies.costs.layer import matmul_flops, padding_flops
from strategies.costs.predict import predict
from strategies.gpt_config import GPTConfig
from tests.benchmarks.simulate.host import MEGATRON, MESHMARK, MPT

EMBED, HEADS, TOKENS, VOCAB = 2048, 16, 1024, 50304
MODEL = GPTConfig(layers=8, embed=EMBED, heads=HEADS, sequence=TOKENS)
BATCH, TIMES = 64, 2
MICROBATCH = BATCH // TIMES * TOKENS
"""Tokens of a microbatch on one device."""
H100 = replace(machine("meshmark_gpus", "h100"), chip=replace(CHIPS["h100"], cores=0))


def step(strategy, mesh, **options):
    """The cost of a step."""
    train = STRATEGIES[strategy].applicable(TrainConfig(BATCH, TIMES, **{"dtype": "bfloat16", **options}))
    return predict(strategy, MODEL, mesh, train, "cuda")


def changed(its, **constants):
    """A machine with other constants."""
    return replace(its, constants=replace(its.constants, **constants))


@pytest.mark.parametrize(("unroll", "remat", "kernels"), [(1, "none", 95), (1, "full", 110), (8, "none", 80)])
def test_each_kernel_of_a_graph_adds_its_latency(unroll, remat, kernels):
    """However long kernels take, a layer also takes the latency of each; those that fill stacks are in loops alone."""
    cost, here = step("single", "data=1", remat=remat, unroll=unroll, reduce="step"), Topology.parse("h100:1x1")
    now, late = (predict_seconds(cost, changed(H100, kernel_seconds=wait), here).parts for wait in (0.0, 1e-6))
    assert late == {**now, "launches": pytest.approx(TIMES * MODEL.layers * kernels * 1e-6)}


def test_attention_is_causal_if_it_is_fused():
    """Forward there are two matmuls of T^2 / 2 pairs, and backward five; each has 2 FLOPs for a pair and a feature."""
    pairs = BATCH // TIMES * TOKENS**2 / 2
    for mesh, devices in (("data=1", 1), ("tensor=4", 4), ("context=4", 4)):
        strategy = "single" if devices == 1 else mesh.partition("=")[0]
        kernels = layer(step(strategy, mesh).plan, MESHMARK)
        ways = kernels.forward, kernels.backward
        found = [sum(each.flops for each in way if each.kind == "attention") for way in ways]
        assert found == pytest.approx([matmuls * 2 * pairs * EMBED / devices for matmuls in (2, 5)])


@pytest.mark.parametrize(("window", "keys"), [(8, 3 * 4), (TOKENS // 2, TOKENS / 2), (None, TOKENS / 2)])
def test_a_window_leaves_fewer_keys(window, keys):
    """A query computes those of three blocks of half a window, or half of all if these are fewer."""
    plan = predict("single", replace(MODEL, attention_window=window), "data=1", TrainConfig(1), "cuda").plan
    forward = [each.flops for each in layer(plan, MESHMARK).forward if each.kind == "attention"]
    assert forward == [2 * 2 * TOKENS * EMBED * keys]


@pytest.mark.parametrize(
    ("stack", "residual", "hidden", "scores"),
    [(MESHMARK, (20, 28), (4, 6), (0, 0)), (MPT, (25, 29), (6, 10), (0, 0)), (MEGATRON, (22, 46), (4, 8), (9, 11))],
)
def test_bytes_between_matmuls_are_counted_by_hand(stack, residual, hidden, scores):
    """A layer moves bytes for each element of the residual stream, of the MLP, and of scores that leave the chip.

    A tensor axis splits all of them, the residual stream only with sequence parallelism. Of float32 there are twice as
    many. Recomputation repeats those of the forward pass; selective recomputation only those of scores, if there are.
    """
    elements = MICROBATCH * EMBED
    for tensors, split in ((1, 1), (4, 4), (4, 1)):
        for dtype, scale in (("bfloat16", 1), ("float32", 2)):
            strategy, mesh = ("single", "data=1") if tensors == 1 else ("tensor", "tensor=4")
            forward, backward = (
                (a / split + 4 * b / tensors + c * HEADS * TOKENS / EMBED / tensors) * elements * scale
                for a, b, c in zip(residual, hidden, scores, strict=True)
            )
            selected = scores[0] * HEADS * TOKENS * MICROBATCH / tensors * scale if any(scores) else forward
            for remat, again in (("none", 0), ("dots", selected), ("full", forward)):
                kernels = layer(step(strategy, mesh, remat=remat, dtype=dtype, sequence_parallel=split > 1).plan, stack)
                ways = kernels.forward, kernels.backward
                found = [sum(each.moved_bytes for each in way if each.kind == "memory") for way in ways]
                assert found == pytest.approx([forward, backward + again])
    loss = [each for way in head(step("single", "data=1").plan, stack, 4) for each in way if each.kind == "memory"]
    assert sum(each.moved_bytes for each in loss) == pytest.approx(stack.kernels.logit_bytes * MICROBATCH * VOCAB / 4)


def test_a_kernel_takes_the_time_of_its_bytes_or_of_its_flops():
    """A pass over memory takes its bytes over the bandwidth reached, a matmul the longer of its bytes and its FLOPs."""
    its = changed(H100, memory_efficiency=0.5, matmul_efficiency=0.5, attention_efficiency=0.25, matmul_dim=64.0)
    peak, moved = its.best_rate(2), 3350e9
    assert Kernel("memory", 0, moved).seconds(its) == pytest.approx(2)
    assert Kernel("attention", peak, 0).seconds(its) == pytest.approx(4)
    assert Kernel("attention", peak, 3 * moved).seconds(its) == pytest.approx(6)
    large, thin = matmul((8192, 4096, 2048, 1), 2), matmul((8192, 4096, 1, 1), 2)
    assert large.flops == 2**37
    assert large.seconds(its) == pytest.approx(2**38 / peak * (1 + 64 / 2048))
    assert thin.moved_bytes == 2 * (8192 + 4096 + 2**25)
    assert thin.seconds(changed(its, matmul_dim=0.0)) == pytest.approx(2 * thin.moved_bytes / moved)


@pytest.mark.parametrize("factor", [None, 1.25])
@pytest.mark.parametrize(("name", "mesh"), [("single", "data=1"), ("expert", "expert=4"), ("tensor", "tensor=4")])
@pytest.mark.parametrize(("platform", "chip", "shape"), [("cuda", "h100", "1x4"), ("tpu", "v5e", "2x2")])
def test_experts_take_the_time_of_all_rows_that_are_computed(name, mesh, factor, platform, chip, shape):
    """Matmuls of a layer have the FLOPs that formulas count, with padding; no step is faster than its bound."""
    model = replace(PRESETS["mixtral-8x7b"], layers=2, sequence=1024, capacity_factor=factor)
    cost = predict(name, model, mesh, TrainConfig(8, dtype="bfloat16", remat="none"), platform)
    plan, devices = cost.plan, cost.plan.mesh.size
    found = devices * sum(each.flops for each in layer(plan, MESHMARK).forward if each.kind == "matmul")
    padding = 8 * 1024 // plan.share.tokens * padding_flops(plan.share)[0]
    router = 2 * model.embed * model.dim_sizes["routes"]
    repeated = 8 * 1024 * router * (devices - 1 if name == "tensor" else 0)  # each device of the tensor axis routes all
    assert found == pytest.approx(8 * (1024 * matmul_flops(model)) + padding + repeated)
    devices_of = Topology.parse(f"{chip}:{shape if devices > 1 else '1x1'}")
    chosen = machine({"cuda": "meshmark_gpus", "tpu": "meshmark_tpus"}[platform], chip)
    assert bound_seconds(cost, chosen, devices_of) <= predict_seconds(cost, chosen, devices_of).step_seconds
