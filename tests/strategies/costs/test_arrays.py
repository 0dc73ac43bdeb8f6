"""The reported sharding of each array is how the step holds it."""

import math
import re
from dataclasses import replace

import jax
import pytest

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import CPU, Topology
from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec
from strategies.backends.topologies import DEVICES_PER_CHIP, devices_of
from strategies.core.plan import Plan
from strategies.costs.arrays import held_arrays
from strategies.costs.defaults import example_mesh, strategy_for, usual_mesh
from strategies.costs.overview import asked_overview, overview
from strategies.costs.predict import predict
from tests.strategies.cases import DAILY, SLOW
from tests.strategies.equality import TRAIN, adam, build, firsts
from tests.strategies.laws import Case
from tests.strategies.models import ODD
from tests.strategies.nightly_formulas import FORMULAS
from tests.strategies.sampling import nightly

CASES = [*DAILY, *SLOW, *FORMULAS]
FIRST = [*{(case.name, case.mesh): case for case in reversed(CASES)}.values()]
"""The first case of each strategy and mesh, for what builds a step."""


def facts_of(leaf):
    """Shape, axes that split each dim, and bytes on a device, of an array of a step."""
    sizes = dict(leaf.sharding.mesh.shape)
    spec = [*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec))]
    axes = tuple(tuple(axis for axis in jax.tree.leaves(each) if sizes[axis] > 1) for each in spec)
    return leaf.shape, axes, leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))


def named(tree):
    """The arrays of a tree by name, such as "blocks.mlp.up_DF"."""
    paths, _ = jax.tree.flatten_with_path(tree)
    return {".".join(key.key for key in path): leaf for path, leaf in paths}


@pytest.mark.parametrize(
    "case",
    [
        *(case if case in FIRST else nightly(case)[0] for case in CASES),
        *(Case("auto", mesh, ODD) for mesh in ("data=4", "fsdp=4,tensor=2")),
    ],
    ids=str,
)
def test_each_array_is_split_as_the_step_splits_it(case):
    """Shape, axes and bytes of weights, moments, step count and batch are those of the step's own shardings."""
    step = build(case.name, case.mesh, case.config, **case.train)
    arrays = [*held_arrays(Plan.of(STRATEGIES[case.name].axes, case.config, MeshSpec.parse(case.mesh), step.train))]
    said = {(each.what, each.name): (each.shape, each.axes, each.held_bytes) for each in arrays}
    moments = adam(step.state)
    held = {"weight": step.state.params, "v": moments.nu, "master": step.state.master or {}}
    expected = {(what, name): leaf for what, tree in held.items() for name, leaf in named(tree).items()}
    expected |= {("m", name): leaf for name, leaf in firsts(step.state).items()}
    expected |= {("step count", "count"): moments.count, ("batch", "tokens"): step.batch}
    gradients = {key for key in said if key[0] == "gradient"}
    assert {key: said[key] for key in said.keys() - gradients} == {key: facts_of(expected[key]) for key in expected}
    assert {weight for _, weight in gradients} == {*named(step.state.params)}
    assert {each.whole_bytes for each in arrays if each.what == "batch"} == {
        4 * step.train.batch_size * (case.config.sequence + 1)
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arrays_add_up_to_what_formulas_say(case):
    """Weights, moments with the count, batch, and accumulated gradients: to the byte, on one device."""
    how = replace(TRAIN, **case.train)
    cost = predict(case.name, case.config, case.mesh, how)
    held: dict[str, int] = dict.fromkeys(("weight", "gradient", "m", "v", "master", "step count", "batch"), 0)
    for each in held_arrays(cost.plan):
        held[each.what] += each.held_bytes
    formula, weights = cost.arguments, [*cost.plan.weights.values()]
    assert (held["weight"], held["batch"]) == (formula["parameters"], formula["batch"])
    of_scale = 8 if how.dtype == "float16" else 0
    assert held["m"] + held["v"] + held["master"] + held["step count"] + of_scale == formula["optimizer"]
    scattered = cost.plan.placement.reduce_scatter_per_microbatch
    itemsizes = [4 if scattered or how.microbatches > 1 else cost.plan.held_bytes(w) // w.elements for w in weights]
    counts = [w.updated_elements if scattered else w.elements * cost.plan.gathered_of(w) for w in weights]
    assert held["gradient"] == sum(map(int.__mul__, counts, itemsizes))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_line_of_the_table_is_of_what_is_split_alike(name):
    """Each array is in one line, with its dims, axes and bytes; gradients that the compiler splits are in none."""
    shown = overview(name, "nano")
    lines = [re.split("  +", line.strip()) for line in shown.array_table().splitlines()[1:]]
    for each in shown.arrays:
        (line,) = [line for line in lines if line[0] == each.name and each.what in line[1].split(", ")]
        assert line[2:] == [each.split, f"{each.whole_bytes:,}", f"{each.held_bytes:,}"]
    assert any(each.what == "gradient" for each in shown.arrays) == (name != "auto")


@pytest.mark.parametrize("axes", [("fsdp", "tensor"), ("data", "fsdp"), ("data", "pipeline"), ("context", "tensor")])
def test_a_mesh_with_more_axes_is_of_the_strategy_that_extends(axes):
    """It does along the named strategy's axes what that one does. Where none does, all that take the mesh are named."""
    mesh = MeshSpec(tuple((axis, 2) for axis in axes))
    taking = [each.name for each in STRATEGIES.values() if {*axes} <= {*each.axis_names}]
    for name, strategy in STRATEGIES.items():
        same = [
            other
            for other in taking
            if STRATEGIES[other].placement.along(strategy.axis_names) == strategy.placement
            and not STRATEGIES[other].twins
        ]
        if name in taking:
            assert strategy_for(name, mesh) == name
        elif same:
            assert strategy_for(name, mesh) in same
        else:
            with pytest.raises(Infeasible, match=f"{name} has no axis .* one of {', '.join(taking)}$"):
                strategy_for(name, mesh)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_topology_is_a_mesh_of_all_of_its_devices(name):
    """One axis has them all, several share them; the batch has a sequence for each; a smaller mesh is refused."""
    strategy, few = STRATEGIES[name], "cpu:1" if name == "single" else "h100:2x2"
    devices = devices_of(few)
    shown = asked_overview(name, "nano", None, few, None)
    assert MeshSpec(shown.mesh).size == devices
    assert {axis for axis, _ in shown.mesh} <= {*strategy.axis_names}
    assert f"{devices} × 64 tokens" in shown.workload
    with pytest.raises(Infeasible, match=f"uses {example_mesh(strategy).size} devices; it must use all 16"):
        asked_overview(name, "nano", str(example_mesh(strategy)), "cpu:16", None)
    if name == "single":
        with pytest.raises(Infeasible, match="single has no mesh of 4 devices; it has at most 1"):
            usual_mesh(strategy, 4)


@pytest.mark.parametrize("text", ["v4:2x2x1", "v5e:4x4", "v5p:4x4x4", "v6e:4x4", "tpu7x:2x2x2", "h100:2x8", "cpu:8"])
def test_the_text_of_a_topology_says_how_many_devices(text):
    """As many as the devices to compile for; the kinds are those of the chips that are known."""
    assert devices_of(text) == device_count(Topology.parse(text))
    assert {*DEVICES_PER_CHIP} == {*CHIPS, CPU}


def test_presets_need_no_devices():
    """The largest model on a thousand devices is described at once, on a machine that has neither."""
    shown = asked_overview("three_d", "gpt3-175b", "data=16,pipeline=8,tensor=8", None, 1536)
    elements = sum(each.held_bytes for each in shown.arrays if each.what == "weight") // 4
    assert PRESETS["gpt3-175b"].layers == 96
    assert elements == pytest.approx(175e9 / 64, rel=0.02)
