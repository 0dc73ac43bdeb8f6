"""Options for overlap: what "auto" is, and what is refused."""

import dataclasses

import jax
import pytest

from benchmarks.cases import Case
from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, Infeasible, MeshSpec, TrainConfig
from strategies.sharding.layout import Layout
from strategies.step import Implementation
from strategies.training import overlap
from strategies.training.overlap import resolve_overlap
from tests.strategies.costs.steps import SMALL

TRAIN = TrainConfig(batch_size=16)
GPUS, OTHERS = ("gpu", "cuda"), ("cpu", None)
SIZES = {"data": 2, "fsdp": 2, "pipeline": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("layout", "options", "reduce", "prefetch"),
    [
        (Layout(batch=("data",)), {}, "layer", "off"),
        (Layout(batch=("data",)), {"microbatches": 2}, "step", "off"),
        (Layout(batch=("data",)), {"compression": "int8"}, "step", "off"),
        (Layout(batch=("data",)), {"prefetch": "on"}, "layer", "off"),
        (Layout(batch=("data",), updates=("data",)), {"microbatches": 2}, "step", "off"),
        (Layout(batch=("data",), updates=("data",), scatters_each=True), {"microbatches": 2}, "layer", "off"),
        (Layout(batch=("fsdp",), shards=("fsdp",)), {"reduce": "layer"}, "step", "on"),
        (Layout(batch=("fsdp",), shards=("fsdp",)), {"microbatches": 2}, "step", "on"),
        (Layout(batch=("fsdp",), shards=("fsdp",)), {"regather": False}, "step", "off"),
        (Layout(batch=("data", "fsdp"), shards=("fsdp",)), {"gather": "step"}, "step", "off"),
        (Layout(batch=("data",), dims={"layers": ("pipeline",)}), {}, "step", "off"),
    ],
    ids=str,
)
def test_by_default_gpus_overlap_where_that_sends_no_more(layout, options, reduce, prefetch):
    """On GPUs "auto" is "layer" where a layer's gradients are summed as often as all, and "on" where a loop over layers
    gathers weights. Elsewhere both are off. An option that has no effect in a layout is off, too.
    """
    train = dataclasses.replace(TRAIN, **options)
    for platform in GPUS:
        found = resolve_overlap(layout, SIZES, SMALL, train, platform)
        assert (found.reduce, found.prefetch) == (reduce, prefetch)
    for platform in OTHERS:
        found = resolve_overlap(
            layout, SIZES, SMALL, dataclasses.replace(train, reduce="auto", prefetch="auto"), platform
        )
        assert (found.reduce, found.prefetch) == ("step", "off")


@pytest.mark.parametrize(("kind", "prefetch"), [("TPU v5", "on"), ("TPU v6 lite", "on"), ("TPU v5 lite", "off")])
def test_tpus_gather_ahead_except_v5e(kind, prefetch):
    """By default TPUs gather weights one layer ahead, except v5e; they sum gradients after the loop."""
    found = resolve_overlap(Layout(batch=("data", "fsdp"), shards=("fsdp",)), SIZES, SMALL, TRAIN, "tpu", kind)
    assert (found.reduce, found.prefetch) == ("step", prefetch)
    asked = dataclasses.replace(TRAIN, prefetch="on")
    assert resolve_overlap(Layout(batch=("fsdp",), shards=("fsdp",)), SIZES, SMALL, asked, "tpu", kind).prefetch == "on"


@pytest.mark.parametrize(
    ("sizes", "options", "accelerators"),
    [
        ({"data": 2, "tensor": 2}, {}, "on"),
        ({"data": 2, "tensor": 2}, {"microbatches": 4}, "on"),
        ({"data": 2, "tensor": 2}, {"microbatches": 8}, "off"),  # one sequence
        ({"data": 16, "tensor": 2}, {}, "off"),
        ({"data": 2}, {"halves": "on"}, "off"),
        ({"data": 2, "tensor": 2}, {"halves": "off"}, "off"),
    ],
    ids=str,
)
def test_accelerators_halve_an_even_number_of_sequences(sizes, options, accelerators):
    """By default GPUs and TPUs run layers that are split over a tensor axis on two halves of a device's sequences, if
    these are an even number. CPUs do not. Without such an axis there are no halves.
    """
    layout = Layout(batch=("data",), dims={"head_features": ("tensor",), "mlp": ("tensor",)})
    train = dataclasses.replace(TRAIN, **options)
    for platform in (*GPUS, "tpu"):
        assert resolve_overlap(layout, sizes, SMALL, train, platform).halves == accelerators
    if not options.get("halves"):
        assert {resolve_overlap(layout, sizes, SMALL, train, platform).halves for platform in OTHERS} == {"off"}


@pytest.mark.parametrize(
    ("name", "mesh", "options", "message"),
    [
        ("data", "data=2", {"reduce": "layer", "microbatches": 4}, "would send gradients for each of microbatches=4"),
        ("data", "data=2", {"reduce": "layer", "compression": "int8"}, "does not go with compression=int8"),
        (
            "hsdp",
            "data=2,fsdp=2",
            {"reduce": "layer", "gather": "step"},
            "does not go with gather=step.* use gather=layer or reduce=step",
        ),
        (
            "three_d",
            "data=2,pipeline=2",
            {"reduce": "layer", "microbatches": 4},
            "no backward loop in a pipeline.* use reduce=step",
        ),
        (
            "tensor",
            "tensor=2",
            {"halves": "on", "microbatches": 16},
            "a microbatch has 1; take an even number or halves=off",
        ),
        ("fsdp", "fsdp=2", {"prefetch": "on", "gather": "step"}, "does not go with gather=step.* prefetch=off"),
        ("fsdp", "fsdp=2", {"prefetch": "on", "regather": False}, "use regather=True or prefetch=off"),
        (
            "three_d",
            "fsdp=2,pipeline=2",
            {"prefetch": "on", "microbatches": 4},
            "no loop over all layers in a pipeline",
        ),
    ],
)
def test_overlap_is_refused_where_it_is_impossible(name, mesh, options, message):
    """An option that was asked for and is impossible is refused, with a way out."""
    with pytest.raises(Infeasible, match=message):
        STRATEGIES[name].build(SMALL, mesh, dataclasses.replace(TRAIN, **options))


def test_one_layer_is_not_gathered_ahead():
    """prefetch=on is refused for a model of one layer, and is off by default."""
    layout, one = Layout(batch=("fsdp",), shards=("fsdp",)), dataclasses.replace(SMALL, layers=1)
    with pytest.raises(Infeasible, match=r"needs a second layer to gather, and layers=1; use prefetch=off"):
        resolve_overlap(layout, SIZES, one, dataclasses.replace(TRAIN, prefetch="on"), "cuda")
    assert resolve_overlap(layout, SIZES, one, TRAIN, "cuda").prefetch == "off"


@pytest.mark.parametrize(
    ("implementation", "reduce", "prefetch"),
    [
        (Implementation(), "layer", "on"),
        (Implementation(sum_replicas=lambda loss, grads: (loss, grads)), "step", "on"),
        (Implementation(compiler_partitioned=True), "step", "off"),
    ],
    ids=["default", "sums once a step", "compiler partitioned"],
)
def test_a_step_has_what_its_strategy_implements(monkeypatch, implementation, reduce, prefetch):
    """On GPUs a strategy that sums gradients by itself, once a step, still does, unless it is asked for more. The
    compiler takes neither option.
    """
    monkeypatch.setattr(overlap, "platform_of", lambda device: "cuda")
    mesh = MeshSpec.parse("data=2,fsdp=2").over(("data", "fsdp"), jax.devices()[:4])
    layout = Layout(batch=("data", "fsdp"), shards=("fsdp",))
    found = overlap.resolve_for_step(SMALL, mesh, TRAIN, layout, implementation)
    assert (found.reduce, found.prefetch) == (reduce, prefetch)
    if implementation.sum_replicas:
        with pytest.raises(Infeasible, match=r"reduce=layer needs `sum_layer` beside `sum_replicas`"):
            overlap.resolve_for_step(SMALL, mesh, dataclasses.replace(TRAIN, reduce="layer"), layout, implementation)


@pytest.mark.parametrize(
    ("kind", "reduce", "prefetch"),
    [("h100:2x4", "layer", "on"), ("v5p:2x2x2", "step", "on"), ("v5e:4x2", "step", "off"), ("cpu:8", "step", "off")],
)
def test_a_case_is_resolved_for_its_topology(kind, reduce, prefetch):
    """Without any compiler, a case knows what its step does on the devices of a topology."""
    spec, topology = MeshSpec.parse("data=2,fsdp=4"), Topology.parse(kind)
    case = Case("hsdp", spec, "small", SMALL, 16, 1, "bfloat16", "full", topology=topology)
    assert (case.resolved.reduce, case.resolved.prefetch) == (reduce, prefetch)
    assert (case.training().reduce, case.training().prefetch) == ("auto", "auto")
