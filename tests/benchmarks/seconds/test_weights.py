"""What a step on virtual devices does with its weights, and how long its devices wait for each other after work."""

from dataclasses import replace

import pytest

from benchmarks.devices.topology import CPU, Topology
from benchmarks.seconds.caches import far_bytes
from benchmarks.seconds.kernels import layer_weights, matmul
from benchmarks.seconds.machines import machine
from benchmarks.seconds.predicted import predict_seconds
from benchmarks.seconds.stack import NONE, VIRTUAL
from strategies import GPTConfig
from strategies.config import TrainConfig
from strategies.costs.predict import predict
from tests.benchmarks.seconds.virtual import CONSTANTS, ITS

MODEL = GPTConfig(layers=4, embed=64, heads=8, vocab=256, sequence=64)
WAITING = replace(VIRTUAL, cores=2, wait_seconds=1e-4, again_seconds=3e-5)


def cost_of(mesh, model=MODEL, **options):
    """The cost of a step of the strategy that is named as the first axis, or of three_d."""
    names = [part.partition("=")[0] for part in mesh.split(",")]
    strategy = options.pop("strategy", names[0] if len(names) == 1 else "three_d")
    return predict(strategy, model, mesh, TrainConfig(**{"batch_size": 16, **options}), CPU)


def parts_of(cost, stack=VIRTUAL):
    """Predicted parts of a step, with zeros."""
    found = predict_seconds(cost, replace(ITS, stack=stack), Topology(CPU, (8,))).parts
    return {**dict.fromkeys(("gathers", "skew", "sends", "launches", "optimizer", "memory"), 0.0), **found}


@pytest.mark.parametrize(
    ("mesh", "microbatches"), [("fsdp=8", 1), ("fsdp=8", 2), ("fsdp=4,pipeline=2", 4), ("data=2,fsdp=4", 1)]
)
def test_what_is_gathered_once_a_step_is_waited_for_once(mesh, microbatches):
    """With `gather="step"` neither layers nor microbatches nor ticks add waits; with "layer" each of them does."""
    stack = replace(WAITING, wait_seconds=1e-4, again_seconds=1e-4)
    late = replace(ITS, stack=stack, constants=replace(CONSTANTS, link_seconds=1e-3))

    def latency(gather, layers, times):
        cost = cost_of(mesh, replace(MODEL, layers=layers), gather=gather, microbatches=times, batch_size=64)
        with_, without = (predict_seconds(cost, its, Topology(CPU, (8,))) for its in (late, replace(ITS, stack=stack)))
        return with_.parts["gathers"] - without.parts["gathers"]

    once = latency("step", 4, microbatches)
    assert once > 0
    assert latency("step", 16, microbatches) == pytest.approx(once)
    assert latency("step", 4, 2 * microbatches) == pytest.approx(once)
    assert latency("layer", 16, microbatches) == pytest.approx(4 * latency("layer", 4, microbatches))


def test_weights_are_copied_out_of_the_stack_of_layers():
    """Each layer's weights are copied for each pass of each microbatch; those of a stage's only layer are not."""
    light = replace(VIRTUAL, weight_bytes=NONE)
    rate = ITS.reached.memory_bytes_per_second
    for mesh, times in (("data=8", 1), ("data=8", 2), ("pipeline=2", 4), ("fsdp=8", 1), ("pipeline=4", 4)):
        cost = cost_of(mesh, microbatches=times)
        more = parts_of(cost)["memory"] - parts_of(cost, light)["memory"]
        held = sum(each.elements for each in cost.plan.weights if each.spec.is_stacked)  # on a device
        copied = times * held * sum(VIRTUAL.weight_bytes) * cost.plan.mesh.size / rate
        assert more == pytest.approx(copied if cost.plan.layers > 1 else 0.0, abs=1e-12)
    assert layer_weights(cost_of("fsdp=8", gather="step").plan) == 8 * layer_weights(cost_of("fsdp=8").plan)


def test_empty_slots_of_stages_have_no_work():
    """Ten layers on eight stages are ten layers of work for the cores, if some stages have two and some one."""
    model = replace(MODEL, layers=10)
    uneven, even = (parts_of(cost_of(mesh, model, microbatches=8)) for mesh in ("pipeline=8", "pipeline=2"))
    for name in ("matmul", "attention"):
        assert uneven[name] == pytest.approx(even[name])
    cost = cost_of("pipeline=8", model, microbatches=8)
    apart = predict_seconds(
        cost, ITS, Topology(CPU, (8, 1))
    ).parts  # each stage on cores of its own waits for the largest
    assert 8 * apart["matmul"] == pytest.approx(16 / 10 * even["matmul"])


def test_caches_hold_a_share_of_what_all_devices_have():
    """Bytes come from memory as far as the cache is too small, and cost then as many bytes as was measured."""
    cost = cost_of("data=8")
    whole = 8 * cost.needed_bytes
    for cache, expected in ((0, 3.0), (whole // 2, 2.0), (whole, 1.0), (2 * whole, 1.0)):
        stack = replace(VIRTUAL, cold_bytes=3.0, cache_bytes=cache)
        assert far_bytes(cost, stack, 8) == pytest.approx(expected, rel=1e-6)
    cold = replace(VIRTUAL, cold_bytes=3.0, update_kernels=0)
    warm = replace(cold, cold_bytes=1.0)
    assert parts_of(cost, cold)["optimizer"] == pytest.approx(3 * parts_of(cost, warm)["optimizer"])


@pytest.mark.parametrize(
    ("strategy", "mesh", "gather"),
    [("zero1", "data=8", "layer"), ("fsdp", "fsdp=8", "step"), ("fsdp", "fsdp=8", "layer")],
)
def test_what_is_gathered_at_once_is_copied(strategy, mesh, gather):
    """All weights and gradients, whole, into the layout in which they are scattered, and back, on each device."""
    cost = cost_of(mesh, strategy=strategy, gather=gather)
    whole = cost_of("data=8").plan.elements if (strategy, gather) != ("fsdp", "layer") else 0
    more = parts_of(cost)["optimizer"] - parts_of(cost, replace(VIRTUAL, update_bytes=0))["optimizer"]
    wanted = 8 * VIRTUAL.update_bytes * whole / ITS.reached.memory_bytes_per_second
    assert more == pytest.approx(wanted, abs=1e-12)


def test_each_tick_has_kernels_of_its_own():
    """Besides those of layers and ends, on every stage."""
    cost = cost_of("pipeline=4", microbatches=8)
    more = parts_of(cost)["sends"] - parts_of(cost, replace(VIRTUAL, tick_kernels=0))["sends"]
    ticks = len(cost.plan.schedule.table[0])
    assert more == pytest.approx(4 * ticks * VIRTUAL.tick_kernels * CONSTANTS.kernel_seconds)


def test_an_array_that_is_kept_costs_a_kernel():
    """Recomputation launches fewer kernels forward, and not twice the forward pass in all."""
    launched = {remat: parts_of(cost_of("data=8", remat=remat))["launches"] for remat in ("none", "dots", "full")}
    rest = 8 * CONSTANTS.kernel_seconds
    per_layer = {remat: (seconds / rest - VIRTUAL.end_kernels) / 4 for remat, seconds in launched.items()}
    assert per_layer == pytest.approx({"none": 54 + 74 + 13, "dots": 54 + 74, "full": 54 + 74 + 16})


def test_few_columns_make_a_matmul_slow():
    """The packing of the first operand counts the less the more columns share it, and more if it is transposed."""
    its = replace(ITS, stack=replace(VIRTUAL, column_dim=16, transposed_dim=64))
    fast = replace(its, chip=replace(its.chip, memory_bytes_per_second=1e18))
    for n in (16, 64, 1024):
        for transposed, dim in ((False, 16), (True, 64)):
            kernel = matmul(4096, n, 512, 4, transposed=transposed)
            assert kernel.seconds(fast) == pytest.approx(kernel.flops / its.reached.flops_per_second * (1 + dim / n))


WAITERS = {
    **dict.fromkeys(("tensor=8", "fsdp=8", "context=8", "pipeline=8", "fsdp=4,tensor=2"), 8),
    **{"data=2,tensor=4": 4, "data=2,fsdp=4": 4, "data=2,pipeline=4": 4, "data=4,fsdp=2": 2, "data=8": 0},
}
"""Meshes, and how many of their devices wait for each other after the work of a layer or of a tick."""


@pytest.mark.parametrize("mesh", WAITERS)
def test_devices_end_together_or_wait_for_the_last(mesh):
    """After each layer's work cores idle for a share of it: the less, the fewer devices wait for each other."""
    strategy = "hsdp" if mesh in ("data=2,fsdp=4", "data=4,fsdp=2") else None
    options = {"microbatches": 8 if "pipeline" in mesh else 1, **({"strategy": strategy} if strategy else {})}
    cost = cost_of(mesh, replace(MODEL, layers=8), batch_size=64, **options)
    even, uneven, more = (parts_of(cost, replace(WAITING, skew=skew)) for skew in (0, 0.1, 0.2))
    idle, twice = (sum(each[name] - even[name] for name in ("skew", "sends")) for each in (uneven, more))
    work = even["matmul"] + even["memory"] + (0 if mesh == "context=8" else even["attention"])
    assert idle == pytest.approx(0.1 * (WAITERS[mesh] / 8) ** 2 * (WAITING.cores - 1) / 8 * work, abs=1e-12)
    assert twice == pytest.approx(2 * idle)


@pytest.mark.parametrize("mesh", ["data=8", "tensor=8", "pipeline=8"])
def test_all_devices_wait_for_the_last_at_the_end_of_a_step(mesh):
    """Whatever they wait for before; where each has a core of its own no core idles."""
    cost = cost_of(mesh, replace(MODEL, layers=8), microbatches=8 if mesh == "pipeline=8" else 1)

    def step(**changes):
        its = replace(ITS, stack=replace(WAITING, **changes))
        return predict_seconds(cost, its, Topology(CPU, (8,))).step_seconds

    work = step() - CONSTANTS.step_seconds
    assert step(step_skew=0.4) - step() == pytest.approx(0.4 * (WAITING.cores - 1) / 8 * work)
    assert step(step_skew=0.4, cores=8) == step(cores=8)


@pytest.mark.parametrize("gather", ["layer", "step"])
def test_parts_of_innermost_dims_are_copied(gather):
    """Gathered weights whose last dim is sharded, and gradients before they are scattered: whole, and the part.

    With a tensor axis these are the second matrix of each branch, and both tables of tokens.
    """
    cost = cost_of("fsdp=4,tensor=2", replace(MODEL, tied=False), gather=gather, remat="full")
    copying = replace(VIRTUAL, transposed_bytes=100)
    seconds = parts_of(cost, copying)["gathers"] - parts_of(cost)["gathers"]
    embed, hidden, vocab = MODEL.embed, MODEL.embed // 2, MODEL.vocab // 2
    of_layers, tables = MODEL.layers * (hidden * embed + 4 * hidden * embed), 2 * vocab * embed
    times = 3 if gather == "layer" else 2  # forward, again backward, and gradients
    elements = (times * of_layers + 2 * tables) * (1 + 1 / 4)
    assert seconds == pytest.approx(8 * elements * 100 / ITS.reached.memory_bytes_per_second)
    alone = cost_of("fsdp=8", gather=gather)
    assert parts_of(alone, copying)["gathers"] == parts_of(alone)["gathers"]


def test_halves_hide_a_part_of_the_sums():
    """On two halves of the batch a layer waits for less of its sums, and for nothing else less."""
    its = machine("meshmark_gpus", "h100")
    model = GPTConfig(layers=8, embed=2048, heads=16, sequence=1024)
    on, off = (
        predict_seconds(
            predict("tensor", model, "tensor=8", TrainConfig(16, dtype="bfloat16", halves=halves), "cuda"),
            its,
            Topology.parse("h100:1x8"),
        ).parts
        for halves in ("on", "off")
    )
    assert on["sums of layers"] == pytest.approx(off["sums of layers"] * (1 - its.stack.halves_hide))
    assert {**on, "sums of layers": 0} == pytest.approx({**off, "sums of layers": 0})
