"""Gradients that are summed in the backward loop over layers: the same numbers and bytes, in another place."""

import dataclasses
import math

import jax
import pytest

from strategies import STRATEGIES, TrainConfig
from strategies.costs.memory import block_elements, layer_work_bytes
from tests.strategies.communication import communication
from tests.strategies.formulas import cost
from tests.strategies.jaxprs import collective, follow, gradients_of, inner, loop_bodies
from tests.strategies.models import SMALL
from tests.strategies.sampling import nightly

TRAIN = TrainConfig(batch_size=16)
CASES = [("three_d", "data=2,context=2,tensor=2", {})]
MORE_CASES = [
    ("data", "data=8", {"bucket_bytes": 10_000, "unroll": 2}),
    ("zero1", "data=8", {}),
    ("zero2", "data=4", {"microbatches": 2}),
    ("hsdp", "data=2,fsdp=4", {"remat": "full"}),
    ("data", "data=8", {}),
    ("data", "data=8", {"reduce_dtype": "bfloat16", "dtype": "bfloat16"}),
    ("context", "context=4", {}),
    ("three_d", "data=2,fsdp=2,tensor=2", {"sequence_parallel": False}),
]


@pytest.mark.parametrize(("name", "mesh", "options"), [*CASES, *MORE_CASES[:2], *nightly(*MORE_CASES[2:])], ids=str)
def test_layer_by_layer_as_many_elements_are_summed(name, mesh, options):
    """Each gradient is summed once, whether in the backward loop or after it; by formula, too."""
    layer, step = ({**options, "reduce": reduce} for reduce in ("layer", "step"))
    assert communication(name, mesh, **layer) == communication(name, mesh, **step)
    assert cost(name, mesh, **layer).sent == cost(name, mesh, **step).sent


def in_loops(program, depth=0):
    """Elements that are summed or scattered over `data` inside loops, once for each loop."""
    total = 0
    for equation in program.eqns:
        name, axes = collective(equation)
        if depth and "data" in axes and name.startswith(("psum", "reduce_scatter")):
            total += sum(x.aval.size for x in equation.invars)
        looped = equation.primitive.name == "scan"
        total += sum(in_loops(part, depth + looped) for part, _ in inner(equation))
    return total


@pytest.mark.parametrize(("name", "mesh"), [("data", "data=8"), ("zero1", "data=8"), ("hsdp", "data=2,fsdp=4")])
@pytest.mark.parametrize("reduce", ["layer", "step", "auto"])
def test_the_backward_loop_sums_one_layer(name, mesh, reduce):
    """With reduce=layer an iteration of the backward loop sums the gradients of one layer. Otherwise, and by default on
    CPUs, it sums none.
    """
    train = dataclasses.replace(TRAIN, reduce=reduce)
    built = STRATEGIES[name].build(SMALL, mesh, train)
    held = [math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(built.state.params["blocks"])]
    layer = sum(held) // SMALL.layers
    program = gradients_of(built)
    assert in_loops(program) == (layer if reduce == "layer" else 0)


def test_a_sharded_update_by_layer_holds_no_whole_gradients():
    """With reduce=layer, zero1 holds gradients of the blocks in shards: by formula 7/8 of them less on 8 devices."""
    step, layer = (cost("zero1", "data=8", reduce=reduce).temporaries["gradients"] for reduce in ("step", "layer"))
    blocks = sum(weight.elements for weight in cost("zero1", "data=8").plan.weights.values() if weight.spec.is_stacked)
    assert step - layer == 4 * blocks * 7 // 8


@pytest.mark.parametrize(("name", "mesh", "late"), [("zero1", "data=8", True), ("hsdp", "data=2,fsdp=4", False)])
def test_sums_run_one_layer_late(name, mesh, late):
    """No reduce-scatter of the backward loop takes what the same iteration multiplies, unless weights are gathered in
    the loop without prefetch.
    """
    train = dataclasses.replace(TRAIN, reduce="layer", prefetch="off")
    built = STRATEGIES[name].build(dataclasses.replace(SMALL, layers=3), mesh, train)
    program = gradients_of(built)
    loops = [*loop_bodies(program)]
    found = [follow(body, [False] * len(body.invars), "dot_general", "reduce_scatter")[1:] for body in loops]
    assert all(products > 0 for products, _ in found)
    assert (sum(scatters for _, scatters in found) == 0) == late


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_late_sums_hold_the_gradients_of_one_layer_more(layers):
    """By formula a layer's backward pass has the gradients of the following layer beside it, with three or more."""
    config = dataclasses.replace(SMALL, layers=layers)
    step, layer = (cost("data", "data=8", config, reduce=reduce).plan for reduce in ("step", "layer"))
    behind = 4 * block_elements(layer) // layers if layers > 2 else 0
    assert layer_work_bytes(layer) - layer_work_bytes(step) == behind
