"""Placements: the formulas split weights as the steps do."""

import math

import jax
import pytest

from strategies import STRATEGIES, Axis, GPTConfig, TrainConfig
from strategies.core.axis import placement_of
from strategies.core.placement import placed
from strategies.costs.predict import predict, strategies_with_formulas

CONFIG = GPTConfig(layers=8, embed=64, heads=8, vocab=256, sequence=64)
MESHES = [
    (name, mesh)
    for name in strategies_with_formulas()
    for devices in (1, 2, 8)
    for mesh in STRATEGIES[name].meshes(devices)
]


@pytest.mark.parametrize(("name", "mesh"), MESHES, ids=str)
def test_formulas_split_weights_as_steps_do(name, mesh):
    """A device has as many parameters by formula as the step gives it."""
    train = TrainConfig(16, microbatches=2 if "pipeline" in mesh.sizes else 1)
    params = STRATEGIES[name].build(CONFIG, mesh, train).state.params
    held = [math.prod(weight.sharding.shard_shape(weight.shape)) for weight in jax.tree.leaves(params)]
    assert predict(name, CONFIG, mesh, train).plan.elements == sum(held)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_all_axes_leave_a_placement_as_it_is(strategy):
    """Restricting a placement to all of its axes changes nothing; restricted to none it has no axes."""
    placement = strategy.placement
    assert placement.along(placement.axes) == placement
    assert placement.along(()).axes == frozenset()


def test_a_weight_that_an_axis_splits_is_no_replica_along_it():
    """An axis may split the batch and a dim of weights: along it only the others' gradients are summed."""
    placement = placement_of((Axis("data", batch=True), Axis("toy", batch=True, dims=("mlp",))))
    summed = {dims: placed(placement, CONFIG, {"data": 2, "toy": 2}, dims).summed for dims in (("embed",), ("mlp",))}
    assert summed == {("embed",): ("data", "toy"), ("mlp",): ("data",)}
