"""Layers on two halves of the batch: the same results and bytes, in twice as many collectives that are independent."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import STRATEGIES, MeshSpec, TrainConfig
from strategies.model.halves import by_halves
from tests.strategies.costs.steps import SMALL
from tests.strategies.costs.test_communication import COLLECTIVES, inner
from tests.strategies.equality import ROUNDING, assert_equal, single, train
from tests.strategies.sampling import nightly


def test_a_half_knows_nothing_of_the_other():
    """What a layer mixes over its batch stays within each half; the order is kept."""
    x = jnp.arange(4.0).reshape(4, 1, 1)
    found = by_halves(lambda half: (half + 10 * half.sum(0, keepdims=True), {}), x)[0]
    np.testing.assert_array_equal(found.ravel(), [10, 11, 52, 53])


def test_gradients_of_the_halves_are_joined_and_not_padded():
    """The gradient of the batch is that of both halves, one after the other.

    Padded to the whole and added up, they take more memory traffic, and XLA for GPUs hides less of what is sent.
    """
    _, backward = jax.vjp(lambda x: by_halves(lambda half: (jnp.sin(half), {}), x)[0], jnp.arange(4.0))
    written = [equation.primitive.name for equation in jax.make_jaxpr(backward)(jnp.ones(4)).eqns]
    assert "concatenate" in written
    assert "pad" not in written


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("tensor", "tensor=4", {"remat": "full"}),
        *nightly(
            ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 2, "schedule": "zb-h1"}),
            ("tensor", "tensor=2", {"dtype": "bfloat16"}),
            ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4}),
            ("tensor", "tensor=4", {"sequence_parallel": False, "microbatches": 2}),
            ("three_d", "fsdp=2,tensor=4", {"prefetch": "on"}),
            ("three_d", "data=2,fsdp=2,tensor=2", {"reduce": "layer", "remat": "none"}),
        ),
    ],
    ids=str,
)
def test_halves_equal_one_device(name, mesh, options):
    """A step whose layers run on halves computes what one device computes."""
    mine = train(name, MeshSpec.parse(mesh), halves="on", **options)
    dtype = options.get("dtype", "float32")
    assert_equal(mine, single(dtype=dtype), ROUNDING[dtype])


def collectives(program, looped=False):
    """(primitive, elements) of each collective over `tensor` inside loops, with how often it is written there."""
    found = collections.Counter()
    for equation in program.eqns:
        axes = equation.params.get("axes", equation.params.get("axis_name", ()))
        name = equation.primitive.name.removesuffix("_invariant")
        if looped and "tensor" in axes and name in COLLECTIVES:
            found[name, sum(x.aval.size for x in equation.invars)] += 1
        for part, _ in inner(equation):
            found += collectives(part, looped or equation.primitive.name == "scan")
    return found


def test_a_layer_has_twice_as_many_collectives_of_half_the_size():
    """Each gather and each sum of a layer becomes two, of half as many elements."""
    whole, halves = (
        collectives(jax.make_jaxpr(step.gradients)(step.state, step.batch).jaxpr)
        for step in (
            STRATEGIES["tensor"].build(SMALL, "tensor=4", TrainConfig(16, halves=halves)) for halves in ("off", "on")
        )
    )
    assert whole
    assert halves == {(name, elements // 2): 2 * count for (name, elements), count in whole.items()}
