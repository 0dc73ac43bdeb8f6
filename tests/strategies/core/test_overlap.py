"""Options for overlap: what "auto" is, and what is refused."""

import dataclasses

import jax
import pytest
from strategies.core.overlap import resolve_overlap

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, Infeasible, MeshSpec, TrainConfig
from strategies.backends.backend import NVIDIA_GPU, backend_for
from strategies.core import overlap
from strategies.core.placement import Layout
from strategies.step import Implementation
from tests.strategies.costs.steps import SMALL

TRAIN = TrainConfig(batch_size=16)
GPUS, OTHERS = ("gpu", "cuda"), ("cpu", None)
SIZES = {"data": 2, "fsdp": 2, "context": 2, "pipeline": 2, "tensor": 2, "replica": 1}


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
        found = resolve_overlap(layout, SIZES, SMALL, train, backend_for(platform))
        assert (found.reduce, found.prefetch) == (reduce, prefetch)
    for platform in OTHERS:
        found = resolve_overlap(
            layout, SIZES, SMALL, dataclasses.replace(train, reduce="auto", prefetch="auto"), backend_for(platform)
        )
        assert (found.reduce, found.prefetch) == ("step", "off")


@pytest.mark.parametrize(
    ("kind", "groups", "alone"), [("TPU v5", "on", "on"), ("TPU v6 lite", "off", "on"), ("TPU v5 lite", "off", "off")]
)
def test_tpus_gather_ahead_where_that_is_faster(kind, groups, alone):
    """By default v5p gathers weights one layer ahead, v6e unless an axis of the batch replicates them, and v5e never.

    A context axis or an axis of one device changes nothing. All of them sum gradients after the loop.
    """
    hybrid, fsdp = Layout(batch=("data", "fsdp"), shards=("fsdp",)), Layout(batch=("fsdp",), shards=("fsdp",))
    around = dataclasses.replace(fsdp, tokens=("context",))
    one_group = dataclasses.replace(hybrid, batch=("replica", "fsdp"))
    for layout, prefetch in ((hybrid, groups), (fsdp, alone), (around, alone), (one_group, alone)):
        found = resolve_overlap(layout, SIZES, SMALL, TRAIN, backend_for("tpu", kind))
        assert (found.reduce, found.prefetch) == ("step", prefetch)
        asked = dataclasses.replace(TRAIN, prefetch="on")
        assert resolve_overlap(layout, SIZES, SMALL, asked, backend_for("tpu", kind)).prefetch == "on"


@pytest.mark.parametrize(
    ("kind", "layout", "options", "unroll"),
    [
        ("TPU v5 lite", Layout(batch=("fsdp",), shards=("fsdp",)), {}, 4),
        ("TPU v5 lite", Layout(batch=("data", "fsdp"), shards=("fsdp",)), {}, 4),
        ("TPU v5 lite", Layout(batch=("fsdp",), shards=("fsdp",)), {"reduce_dtype": "float32"}, 1),
        ("TPU v5 lite", Layout(batch=("fsdp",), shards=("fsdp",)), {"gather": "step"}, 1),
        ("TPU v5 lite", Layout(batch=("fsdp",), shards=("fsdp",)), {"prefetch": "on"}, 1),
        ("TPU v5 lite", Layout(batch=("fsdp",), shards=("fsdp",)), {"unroll": 2}, 2),
        ("TPU v5 lite", Layout(batch=("fsdp",), shards=("fsdp",), dims={"mlp": ("tensor",)}), {}, 1),
        ("TPU v5 lite", Layout(batch=("data",)), {}, 1),
        ("TPU v6 lite", Layout(batch=("fsdp",), shards=("fsdp",)), {}, 1),
        ("cpu", Layout(batch=("fsdp",), shards=("fsdp",)), {}, 1),
        ("cpu", Layout(batch=("fsdp",), shards=("fsdp",)), {"unroll": 3}, 3),
    ],
    ids=str,
)
def test_iterations_have_several_layers_where_that_is_faster(kind, layout, options, unroll):
    """By default v5e runs four layers in an iteration that gathers weights and sums in bfloat16; others run one."""
    train = dataclasses.replace(TRAIN, **{"dtype": "bfloat16", "reduce_dtype": "bfloat16", **options})
    backend = backend_for(kind.split()[0].lower(), kind)
    assert resolve_overlap(layout, SIZES, SMALL, train, backend).unroll == unroll


TENSOR = Layout(batch=("data",), dims={"head_features": ("tensor",), "mlp": ("tensor",)})


@pytest.mark.parametrize(
    ("layout", "sizes", "options", "default"),
    [
        (TENSOR, {"data": 2, "tensor": 2}, {}, "on"),
        (TENSOR, {"data": 2, "tensor": 2}, {"microbatches": 4}, "on"),
        (TENSOR, {"data": 2, "tensor": 2}, {"microbatches": 8}, "off"),  # one sequence
        (TENSOR, {"data": 2, "tensor": 2}, {"batch_size": 6}, "off"),  # three
        (TENSOR, {"data": 16, "tensor": 2}, {}, "off"),
        (TENSOR, {"data": 2, "tensor": 2}, {"halves": "off"}, "off"),
        (TENSOR, {"data": 2}, {"halves": "on"}, "off"),  # nothing to hide
        (dataclasses.replace(TENSOR, tokens=("context",)), {"context": 2, "tensor": 2}, {}, "off"),
        (dataclasses.replace(TENSOR, tokens=("context",)), {"context": 1, "tensor": 2}, {}, "on"),
    ],
    ids=str,
)
def test_an_even_number_of_sequences_is_halved(layout, sizes, options, default):
    """By default GPUs, v5e, v5p and v6e run layers that a tensor axis splits on two halves of an even number of
    sequences, unless a context axis splits these. Other devices do not.
    """
    train = dataclasses.replace(TRAIN, **options)
    tpus = [("tpu", kind) for kind in ("TPU v5 lite", "TPU v5", "TPU v6 lite")]
    for platform, kind in (("gpu", ""), ("cuda", ""), *tpus):
        assert resolve_overlap(layout, sizes, SMALL, train, backend_for(platform, kind)).halves == default
    for platform, kind in (("cpu", ""), (None, ""), ("tpu", "TPU v4")):
        assert resolve_overlap(layout, sizes, SMALL, train, backend_for(platform, kind)).halves == "off"


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
            r"batch_size=16 / 16 = 1; use fewer microbatches, a larger batch or halves=off",
        ),
        ("three_d", "context=2,tensor=2", {"halves": "on"}, "does not go with a context axis.* use halves=off"),
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
        resolve_overlap(layout, SIZES, one, dataclasses.replace(TRAIN, prefetch="on"), NVIDIA_GPU)
    assert resolve_overlap(layout, SIZES, one, TRAIN, NVIDIA_GPU).prefetch == "off"


@pytest.mark.parametrize(
    ("implementation", "reduce", "prefetch", "halves"),
    [
        (Implementation(), "layer", "on", "on"),
        (Implementation(sum_replicas=lambda loss, grads: (loss, grads)), "step", "on", "on"),
        (Implementation(compiler_partitioned=True), "step", "off", "off"),
    ],
    ids=["default", "sums once a step", "compiler partitioned"],
)
def test_a_step_has_what_its_strategy_implements(monkeypatch, implementation, reduce, prefetch, halves):
    """On GPUs a strategy that sums gradients by itself, once a step, still does, unless it is asked for more. The
    compiler takes none of the options.
    """
    monkeypatch.setattr(overlap, "backend_of", lambda device: NVIDIA_GPU)
    mesh = MeshSpec.parse("data=2,fsdp=2,tensor=2").over(("data", "fsdp", "tensor"), jax.devices())
    layout = Layout(batch=("data", "fsdp"), shards=("fsdp",), dims=TENSOR.dims)
    found = overlap.resolve_for_step(SMALL, mesh, TRAIN, layout, implementation)
    assert (found.reduce, found.prefetch, found.halves, found.unroll) == (reduce, prefetch, halves, 1)
    if implementation.sum_replicas:
        with pytest.raises(Infeasible, match=r"reduce=layer needs `sum_layer` beside `sum_replicas`"):
            overlap.resolve_for_step(SMALL, mesh, dataclasses.replace(TRAIN, reduce="layer"), layout, implementation)


@pytest.mark.parametrize(
    ("kind", "reduce", "prefetch", "halves"),
    [
        ("h100:2x4", "layer", "on", "on"),
        ("v5p:2x2x2", "step", "on", "on"),
        ("v5e:4x2", "step", "off", "on"),
        ("cpu:8", "step", "off", "off"),
    ],
)
def test_a_case_is_resolved_for_its_topology(kind, reduce, prefetch, halves):
    """Without any compiler, a case knows what its step does on the devices of a topology."""
    spec, topology = MeshSpec.parse("data=2,fsdp=2,tensor=2"), Topology.parse(kind)
    case = Case("three_d", spec, "small", SMALL, 16, 1, "bfloat16", "full", topology=topology)
    assert (case.resolved.reduce, case.resolved.prefetch, case.resolved.halves) == (reduce, prefetch, halves)
    assert {case.training().reduce, case.training().prefetch, case.training().halves} == {"auto"}
