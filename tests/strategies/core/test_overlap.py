"""Options for overlap: what "auto" is, and what is refused."""

from dataclasses import replace

import pytest

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, Axis, Infeasible, MeshSpec, Strategy, TrainConfig, auto, data
from strategies.backends.backend import NVIDIA_GPU, backend_for
from strategies.core.plan import Plan
from strategies.step import Implementation
from tests.strategies.models import SMALL

TRAIN = TrainConfig(batch_size=16)
GPUS, OTHERS = ("gpu", "cuda"), ("cpu", None)


def resolved(name, mesh, train, backend, config=SMALL):
    """The options of a strategy as a plan resolves them."""
    return Plan.of(STRATEGIES[name].axes, config, MeshSpec.parse(mesh), train, backend, checked=False).train


@pytest.mark.parametrize(
    ("name", "mesh", "options", "reduce", "prefetch"),
    [
        ("data", "data=2", {}, "layer", "off"),
        ("data", "data=2", {"microbatches": 2}, "step", "off"),
        ("data", "data=2", {"compression": "int8"}, "step", "off"),
        ("hsdp", "data=2", {"prefetch": "on"}, "layer", "off"),
        ("zero1", "data=2", {"microbatches": 2}, "step", "off"),
        ("zero2", "data=2", {"microbatches": 2}, "layer", "off"),
        ("hsdp", "fsdp=2", {"reduce": "layer"}, "step", "on"),
        ("fsdp", "fsdp=2", {"microbatches": 2}, "step", "on"),
        ("fsdp", "fsdp=2", {"regather": False}, "step", "off"),
        ("hsdp", "data=2,fsdp=2", {"gather": "step"}, "step", "off"),
        ("three_d", "data=2,pipeline=2", {}, "step", "off"),
    ],
    ids=str,
)
def test_by_default_gpus_overlap_where_that_sends_no_more(name, mesh, options, reduce, prefetch):
    """On GPUs "auto" is "layer" where a layer's gradients are summed as often as all, and "on" where a loop over layers
    gathers weights. Elsewhere both are off. An option of an axis that the mesh leaves out is off, too.
    """
    train = replace(TRAIN, **options)
    for platform in GPUS:
        found = resolved(name, mesh, train, backend_for(platform))
        assert (found.reduce, found.prefetch) == (reduce, prefetch)
    for platform in OTHERS:
        found = resolved(name, mesh, replace(train, reduce="auto", prefetch="auto"), backend_for(platform))
        assert (found.reduce, found.prefetch) == ("step", "off")


@pytest.mark.parametrize(("kind", "prefetch"), [("TPU v5", "on"), ("TPU v6 lite", "on"), ("TPU v5 lite", "off")])
def test_tpus_gather_ahead_where_that_is_faster(kind, prefetch):
    """By default v5p and v6e gather weights one layer ahead, and v5e does not. All sum gradients after the loop."""
    backend = backend_for("tpu", kind)
    cases = [("hsdp", "data=2,fsdp=2"), ("fsdp", "fsdp=2"), ("three_d", "fsdp=2,context=2"), ("hsdp", "data=1,fsdp=2")]
    for name, mesh in cases:
        found = resolved(name, mesh, TRAIN, backend)
        assert (found.reduce, found.prefetch) == ("step", prefetch)
        assert resolved(name, mesh, replace(TRAIN, prefetch="on"), backend).prefetch == "on"


@pytest.mark.parametrize(
    ("mesh", "options", "default"),
    [
        ("data=2,tensor=2", {}, "on"),
        ("data=2,tensor=2", {"microbatches": 4}, "on"),
        ("data=2,tensor=2", {"microbatches": 8}, "off"),  # one sequence
        ("data=2,tensor=2", {"batch_size": 6}, "off"),  # three
        ("data=16,tensor=2", {}, "off"),
        ("data=2,tensor=2", {"halves": "off"}, "off"),
        ("data=2", {"halves": "on"}, "off"),  # nothing to hide
        ("context=2,tensor=2", {}, "off"),
        ("context=1,tensor=2", {}, "on"),
    ],
    ids=str,
)
def test_an_even_number_of_sequences_is_halved(mesh, options, default):
    """By default GPUs, v5e, v5p and v6e run layers that a tensor axis splits on two halves of an even number of
    sequences, unless a context axis splits these. Other devices do not.
    """
    train = replace(TRAIN, **options)
    tpus = [("tpu", kind) for kind in ("TPU v5 lite", "TPU v5", "TPU v6 lite")]
    for platform, kind in (("gpu", ""), ("cuda", ""), *tpus):
        assert resolved("three_d", mesh, train, backend_for(platform, kind)).halves == default
    for platform, kind in (("cpu", ""), (None, ""), ("tpu", "TPU v4")):
        assert resolved("three_d", mesh, train, backend_for(platform, kind)).halves == "off"


@pytest.mark.parametrize(
    ("mesh", "changes", "kinds"),
    [
        ("data=2,expert=2", {"capacity_factor": 1.0}, {"cuda", "TPU v5"}),
        ("data=2,expert=2", {}, {"TPU v5"}),
        ("tensor=2", {}, {"TPU v5"}),
        ("expert=2", {"experts": None}, set()),
        ("data=2", {"capacity_factor": 1.0}, set()),
    ],
)
def test_exchanges_of_experts_are_halved_where_that_hides_them(mesh, changes, kinds):
    """By default GPUs and TPUs run layers on two halves of the batch where an axis splits experts, too. GPUs do not
    where rows are sorted into blocks. Without experts an expert axis has nothing to hide.
    """
    config = replace(SMALL, **{"experts": 4, **changes})
    for platform, kind in (("cuda", ""), ("tpu", "TPU v5"), ("cpu", "")):
        found = resolved("three_d", mesh, TRAIN, backend_for(platform, kind), config).halves
        assert found == ("on" if {platform, kind} & kinds else "off")


def test_one_layer_is_not_gathered_ahead():
    """prefetch=on is refused for a model of one layer, and is off by default."""
    one = replace(SMALL, layers=1)
    with pytest.raises(Infeasible, match=r"needs a second layer to gather, and layers=1; use prefetch=off"):
        resolved("fsdp", "fsdp=2", replace(TRAIN, prefetch="on"), NVIDIA_GPU, one)
    assert resolved("fsdp", "fsdp=2", TRAIN, NVIDIA_GPU, one).prefetch == "off"


def test_a_step_has_what_its_axes_implement():
    """An axis that does not resolve `reduce` sums gradients once a step, on GPUs too. One that resolves it has to
    implement it. The compiler takes none of the options.
    """
    plain = Axis("data", batch=True, implement=lambda plan: Implementation(reduce=lambda *sums: sums))
    mesh, by_layer = MeshSpec.parse("data=2"), replace(TRAIN, reduce="layer")
    assert Plan.of((plain,), SMALL, mesh, TRAIN, NVIDIA_GPU, checked=False).train.reduce == "step"
    strategy = Strategy("mine", (replace(plain, resolve=data.REPLICAS.resolve, options=("reduce",)),))
    with pytest.raises(Infeasible, match=r"reduce=layer needs `sum_layer` in addition to `reduce`"):
        strategy.build(SMALL, mesh, by_layer)
    found = Plan.of(auto.AXES, SMALL, MeshSpec.parse("fsdp=2,tensor=2"), TRAIN, NVIDIA_GPU, checked=False).train
    assert (found.reduce, found.prefetch, found.halves, found.unroll) == ("step", "off", "off", 1)


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
