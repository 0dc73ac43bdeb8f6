"""Predicted seconds add up, agree with the formulas that they come from, and move the right way."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.simulate.kernels import head, layer, tiles_filled, update_bytes
from benchmarks.simulate.links import TorusSpan, group
from benchmarks.simulate.machine import RANGES
from benchmarks.simulate.machines import machine, machine_names
from benchmarks.simulate.stack import HALVES_SHARE, TOKENS_SHARE, Collective
from benchmarks.simulate.stages import Stages
from benchmarks.simulate.step import Step, bound_seconds, predict_seconds
from strategies import MeshSpec
from strategies.config import TrainConfig
from strategies.core.matrices import has_matrices
from strategies.costs.layer import score_flops
from strategies.costs.predict import predict
from strategies.gpt_config import GPTConfig
from strategies.pipelining.schedules import PassTimes
from tests.benchmarks.simulate.host import MEGATRON, MESHMARK, MPT
from tests.benchmarks.simulate.ideal_machines import DROPLESS, MIXTURE, MODEL, topology_of

LATENT = replace(
    MODEL, block="llama", tied=False, latent_rank=512, query_rank=768, head_size=192, rotary_size=64, value_size=128
)
H100S = Topology.parse("h100:2x8")
MESHES = {
    "single": "data=1",
    "data": "data=16",
    "zero1": "data=16",
    "fsdp": "fsdp=16",
    "hsdp": "data=2,fsdp=8",
    "tensor": "tensor=16",
    "context": "context=16",
    "pipeline": "pipeline=8",
    "three_d": "data=2,pipeline=4,tensor=2",
}
WAITING = {"flops": "single", "hbm_bandwidth": "single", "link_bandwidth": "tensor=8", "inter_host_bandwidth": "data=2"}
"""Specifications, and a strategy or mesh whose devices wait for what they describe."""


SMALL = GPTConfig(layers=8, embed=128, heads=16, sequence=128)
"""Its kernels are shorter than their launches."""
SENDERS = (
    *(("fsdp", {}), ("data", {}), ("zero1", {}), ("tensor", {"halves": "on"}), ("tensor", {"sequence_parallel": True})),
    *(("context", {"context_attention": "ring"}), ("pipeline", {"schedule": "interleaved", "mesh": "pipeline=4"})),
    ("three_d", {"schedule": "interleaved", "mesh": "pipeline=2,expert=8", "model": replace(MODEL, experts=8)}),
    ("expert", {"mesh": "expert=8", "model": replace(MODEL, experts=8)}),
)
"""Steps that send all that a stack may overlap."""


def step(strategy, mesh=None, platform="cuda", model=MODEL, **options):
    """The cost of a step."""
    train = TrainConfig(**{"batch_size": 64, "microbatches": 8, "dtype": "bfloat16", **options})
    microbatches = train.microbatches if strategy in ("pipeline", "three_d") else 1
    mesh = mesh or MESHES[strategy]
    return predict(strategy, model, mesh, replace(train, microbatches=microbatches), platform)


@pytest.mark.parametrize("name", machine_names())
@pytest.mark.parametrize("strategy", MESHES)
def test_parts_add_up_and_none_is_negative(strategy, name):
    """A step's seconds are the sum of its named parts, each at least zero, and no less than its matmuls at the peak."""
    cost, its = step(strategy), machine(name)
    timeline = predict_seconds(cost, its, topology_of(cost))
    assert timeline.step_seconds == pytest.approx(sum(timeline.parts.values()))
    assert min(timeline.parts.values()) >= -1e-12
    assert timeline.step_seconds > cost.model_flops(causal=True) / cost.plan.mesh.size / its.chip.flops_per_second


@pytest.mark.parametrize("stack", [MEGATRON, MPT, MESHMARK], ids=lambda stack: stack.name)
@pytest.mark.parametrize(
    ("model", "strategy"), [*product([MODEL, LATENT], ["single", "tensor", "three_d"]), (LATENT, "context")]
)
def test_kernels_have_the_flops_of_the_formulas(model, strategy, stack):
    """Matmuls of all layers, microbatches and devices have the FLOPs that the model needs, with further expansions."""
    cost = step(strategy, model=model, remat="none")
    plan = cost.plan
    kernels = layer(plan, stack)
    ends = head(plan, stack, plan.size(*plan.vocab_axes))
    per_layer = sum(each.flops for each in (*kernels.forward, *kernels.backward) if each.kind == "matmul")
    at_ends = sum(each.flops for pair in ends for each in pair)
    # Stages share the head; each device of a stage has its layers.
    found = (per_layer * plan.layers + at_ends) * plan.train.microbatches * plan.mesh.size
    scores = 3 * model.layers * score_flops(model) * plan.train.batch_size * model.sequence
    more = sum(cost.flops[what] for what in ("padding", "replicated", "latents again"))
    wanted = cost.model_flops() + more - (scores if stack.attention == "fused" else 0)
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("name", "strategy"), WAITING.items())
def test_a_faster_resource_saves_what_is_waited_for(name, strategy):
    """Twice the rate makes a step faster whose devices wait for it, and no step slower."""
    its = machine("meshmark_gpus", "h100")
    kind, _, size = strategy.partition("=")
    cost = step(kind, mesh=strategy if size else None, reduce="step")
    devices = Topology("h100", (2, 1) if name == "inter_host_bandwidth" else (1, int(size or 1)))
    now = predict_seconds(cost, its, devices).step_seconds
    assert predict_seconds(cost, its.with_changes({name: "2x"}), devices).step_seconds < now
    for other in MESHES:
        cost = step(other)
        before = predict_seconds(cost, its, topology_of(cost)).step_seconds
        assert predict_seconds(cost, its.with_changes({name: "2x"}), topology_of(cost)).step_seconds <= before


@pytest.mark.parametrize("constant", RANGES)
def test_every_constant_moves_a_prediction_its_way(constant):
    """An efficiency makes some step faster and none slower; a latency or a size the other way round."""
    its, moved = machine("a100_megatron"), 0.0
    low, high, _ = RANGES[constant]
    sign = -1 if constant.endswith("efficiency") else 1
    for strategy in MESHES:
        for stack, model in product((MEGATRON, MPT), (MODEL, SMALL)):
            cost = step(strategy, model=model)
            ends = [
                predict_seconds(cost, replace(its, stack=stack, constants=constants), topology_of(cost)).step_seconds
                for value in (low, high)
                for constants in [replace(its.constants, **{constant: value})]
            ]
            assert sign * (ends[1] - ends[0]) >= -1e-12 * ends[0]  # launches that are waited for round differently
            moved += abs(ends[1] - ends[0])
    assert moved > 0


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_without_sends_and_ends_the_bubble_is_that_of_the_schedule(schedule):
    """The bubble of a pipeline whose stages do nothing but their layers is the closed formula's."""
    plan = step("pipeline", mesh="pipeline=4", schedule=schedule, microbatches=8).plan
    parts = Stages(plan, MEGATRON, {"F": {"matmul": 1.0}, "B": {"matmul": 2.0}}, {}, 0.0).parts
    assert parts["bubble"] / sum(parts.values()) == pytest.approx(plan.schedule.bubble(PassTimes(1, 1, 1)))


def test_the_bound_is_below_every_prediction():
    """No prediction is faster than perfect overlap at the chip's peak, but for what causality masks."""
    its = machine("meshmark_gpus", "h100")
    for strategy in MESHES:
        cost = step(strategy)
        least = bound_seconds(cost, its, topology_of(cost))
        assert 0 < least < predict_seconds(cost, its, topology_of(cost)).step_seconds, strategy


def test_links_of_different_kinds_work_side_by_side():
    """Gathers inside a host and sums between hosts: the least time is that of the slower of both, not their sum."""
    cost, its = step("hsdp"), machine("meshmark_gpus", "h100").with_changes({"link_bandwidth": "0.01x"})
    slow = its.with_changes({"inter_host_bandwidth": "0.1x"})
    seconds = {axes: 0.0 for _, axes in cost.sent}
    for (_, axes), parts in cost.sent.items():
        seconds[axes] += float(sum(parts.values())) / (4.5e9 if axes == ("fsdp",) else 5e9)
    assert bound_seconds(cost, slow, H100S) == pytest.approx(max(seconds.values()))


@pytest.mark.parametrize(
    ("axes", "expected"),
    [(("tensor",), (2, 1)), (("pipeline",), (4, 1)), (("data",), (2, 2)), (("data", "tensor"), (4, 2))],
)
def test_groups_of_gpus_lie_where_devices_are_numbered_host_by_host(axes, expected):
    """Inner axes stay inside a host of eight."""
    found = group(H100S, MeshSpec.parse("data=2,pipeline=4,tensor=2"), axes)
    assert (found.devices, found.hosts) == expected


@pytest.mark.parametrize("strategy", ["single", "tensor"])
def test_a_leading_dense_layer_costs_what_a_layer_of_a_dense_model_costs(strategy):
    """A leading layer without experts takes as long as one of a model without any."""
    h100 = machine("meshmark_gpus", "h100")

    def costs(layers, **mixture):
        cost = step(strategy, model=replace(MODEL, block="llama", layers=layers, **mixture), halves="off", unroll=1)
        return predict_seconds(cost, h100, topology_of(cost)).step_seconds

    def of_last_layer(**mixture):
        return costs(8, **mixture) - costs(7, **mixture | {"dense_layers": max(0, mixture["dense_layers"] - 1)})

    mixture = {"experts": 8, "expert_mlp": 512}
    dense = of_last_layer(dense_layers=0)
    assert of_last_layer(dense_layers=2, **mixture) == pytest.approx(dense)
    assert of_last_layer(dense_layers=0, **mixture) != pytest.approx(dense)


def test_all_stages_run_a_leading_dense_layer_forward_twice_and_backward_once():
    """For each microbatch, as long as one device does, and no stage does anything else at the time."""
    h100 = machine("meshmark_gpus", "h100")

    def stages(strategy, dense_layers, **options):
        model = replace(MODEL, layers=8 + dense_layers, dense_layers=dense_layers, experts=8)
        cost = step(strategy, model=model, **options)
        return Step(cost, h100, topology_of(cost)).stages

    lead, without = (stages("single", count, batch_size=64 // 8).work for count in (1, 0))
    forward, backward = (lead[kind]["matmul"] - without[kind]["matmul"] for kind in lead)
    lead, without = (stages("pipeline", count).parts for count in (1, 0))
    assert lead["matmul"] - without["matmul"] == pytest.approx(8 * (2 * forward + backward))
    assert lead["bubble"] == pytest.approx(without["bubble"])


def test_a_torus_has_rings_along_whole_dims():
    """A group of chips lies along dims of the torus; a dim that it spans whole is a ring."""
    cube = Topology.parse("v5p:4x4x4")
    assert group(cube, MeshSpec.parse("data=4,fsdp=16"), ("data",)).devices == 4
    assert group(cube, MeshSpec.parse("fsdp=64"), ("fsdp",)).dims == (TorusSpan(4, ring=True),) * 3


def test_tiles_that_fill_the_last_wave_are_faster():
    """128 tiles on 108 cores take two waves; a matmul twice as large uses them better (NVIDIA's guide, section 3.2)."""
    assert tiles_filled(2048, 2048, 1, 108) < tiles_filled(4096, 4096, 1, 108) <= 1
    assert tiles_filled(256, 128, 108, 108) == 1


@pytest.mark.parametrize("collective", get_args(Collective))
def test_a_stack_is_a_rule_of_what_overlaps(collective):
    """Whatever overlaps, no step takes longer, and who sends that takes less time. Some packaged stack overlaps it."""
    h100 = machine("meshmark_gpus", "h100")
    at_once, later = (replace(h100, stack=replace(MESHMARK, overlaps=overlaps)) for overlaps in ((), (collective,)))
    shorter = 0
    for strategy, options in SENDERS:
        cost = step(strategy, **{"reduce": "step", **options})
        before, after = (predict_seconds(cost, stacked, topology_of(cost)).step_seconds for stacked in (at_once, later))
        assert after <= before * (1 + 1e-12)
        shorter += after < before
    assert shorter


@pytest.mark.parametrize(
    ("axis", "model", "share"),
    [("tensor", MODEL, HALVES_SHARE), ("expert", MIXTURE, TOKENS_SHARE), ("expert", DROPLESS, 0.0)],
)
def test_halves_hide_a_part_of_the_collectives(axis, model, share):
    """On two halves of the batch a layer waits for less of its collectives, and for nothing else less.

    Without a capacity factor, what experts exchange is as good as not hidden.
    """
    h100 = machine("meshmark_gpus", "h100")
    on, off = (
        predict_seconds(step(axis, f"{axis}=8", model=model, halves=halves), h100, Topology.parse("h100:1x8")).parts
        for halves in ("on", "off")
    )
    assert on["layer collectives"] == pytest.approx(off["layer collectives"] * (1 - share))
    assert {**on, "layer collectives": 0} == pytest.approx({**off, "layer collectives": 0})


@pytest.mark.parametrize(
    ("strategy", "mesh", "microbatches"),
    [("fsdp", "fsdp=8", 1), ("fsdp", "fsdp=8", 2), ("three_d", "fsdp=4,pipeline=2", 4), ("hsdp", "data=2,fsdp=4", 1)],
)
def test_what_is_gathered_once_a_step_is_waited_for_once(strategy, mesh, microbatches):
    """With `gather="step"` neither layers nor microbatches add waits; with "layer" each layer does."""
    here = machine("meshmark_gpus", "h100")
    here = replace(here, stack=replace(here.stack, overlaps=()))
    late = replace(here, constants=replace(here.constants, link_seconds=1e-3))

    def latency(gather, layers, times):
        model, train = replace(SMALL, layers=layers), TrainConfig(64, times, dtype="bfloat16", gather=gather)
        cost = predict(strategy, model, mesh, train, "cuda")
        with_, without = (predict_seconds(cost, its, Topology.parse("h100:1x8")).parts for its in (late, here))
        return with_["gathers"] - without["gathers"]

    once = latency("step", 4, microbatches)
    assert once > 0
    assert latency("step", 16, microbatches) == pytest.approx(once)
    assert latency("step", 4, 2 * microbatches) == pytest.approx(once)
    assert latency("layer", 16, microbatches) == pytest.approx(4 * latency("layer", 4, microbatches))


@pytest.mark.parametrize(("name", "mesh"), [("fsdp", "fsdp=16"), ("three_d", "fsdp=8,tensor=2")])
def test_muon_takes_the_time_of_what_it_sends_and_computes(name, mesh):
    """Gathers and all-to-alls after the gradients, sums of Gram matrices for longest; its part grows with its FLOPs."""

    def parts(**options):
        cost = predict(name, MODEL, mesh, TrainConfig(32, dtype="bfloat16", **options))
        return cost, predict_seconds(cost, machine("meshmark_gpus", "h100"), H100S).parts

    adamw_cost, adamw = parts()
    found = [parts(optimizer="muon", matrices=matrices) for matrices in ("deal", "gather", "gram")]
    costs, muon = [adamw_cost, *(cost for cost, _ in found)], [adamw, *(each for _, each in found)]
    assert [*costs] == sorted(costs, key=lambda cost: cost.sent_bytes)
    sending = [each.get("gradients", 0.0) for each in muon]
    assert min(sending) == sending[0] < min(sending[1:])
    assert max(sending) == sending[3]
    assert sorted(muon, key=lambda each: each["optimizer"])[0] is adamw
    by_flops = sorted(range(4), key=lambda i: costs[i].optimizer_flops)
    assert by_flops == sorted(range(4), key=lambda i: muon[i]["optimizer"])


def test_an_optimizer_reads_and_writes_the_moments_that_it_keeps():
    """Of a parameter, SGD moves 8 bytes less than AdamW, 12 with momentum in bfloat16; Muon 8 less of matrices."""

    def moved(**options):
        cost = predict("fsdp", MODEL, "fsdp=16", TrainConfig(32, dtype="bfloat16", **options))
        return update_bytes(cost.plan, machine("meshmark_gpus", "h100").stack), cost.plan

    (adamw, plan), (muon, _) = moved(), moved(optimizer="muon")
    for dtype, saved in (("float32", 8), ("bfloat16", 12)):
        assert adamw - moved(optimizer="sgd", momentum_dtype=dtype)[0] == saved * plan.elements
    matrices = sum(weight.elements for weight in plan.weights.values() if has_matrices(weight.spec))
    assert adamw - muon == 8 * matrices > 0
