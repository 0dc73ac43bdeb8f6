"""Placements: the formulas split weights as the steps do, and contradictory axes are refused."""

import math

import jax
import pytest

from strategies import STRATEGIES, Axis, GPTConfig, Strategy, TrainConfig
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


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([{"batch": "yes"}], "batch='yes'; it must be true or false"),
        ([{"dims": "mlp"}], "dims='mlp'; it must be a list"),
        ([{"batch": True, "tokens": True}], "batch and tokens have the axis toy twice; omit one of them"),
        ([{"batch": True}, {"batch": True}], "batch and tokens have the axis toy twice; omit one of them"),
        ([{"shards": True}], "shards has the axis toy, which does not split the batch; add it to batch"),
        ([{"updates": True}], "updates has the axis toy, which does not split the batch; add it to batch"),
        ([{"dims": ("head",)}], "no weight has the dim 'head'; dims are layers, dense_layers, vocab, "),
        (
            [{"batch": True, "shards": True}, {"name": "other", "batch": True, "updates": True}],
            "weights are sharded over toy, and so are their updates; ",
        ),
        (
            [{"batch": True, "reduce_scatter_per_microbatch": True}],
            "reduce_scatter_per_microbatch says when gradients are scattered over updates; set updates, too",
        ),
        ([{"options": ("nope",)}], "mine has the option 'nope'; it can have attention, batch_size"),
    ],
    ids=str,
)
def test_contradictory_axes_are_refused(axes, message):
    """An axis or a strategy that contradicts itself raises a ValueError when it is made."""
    with pytest.raises(ValueError, match=message):
        Strategy("mine", tuple(Axis(**{"name": "toy", **fields}) for fields in axes))


def test_a_weight_that_an_axis_splits_is_no_replica_along_it():
    """An axis may split the batch and a dim of weights: along it only the others' gradients are summed."""
    placement = placement_of((Axis("data", batch=True), Axis("toy", batch=True, dims=("mlp",))))
    summed = {dims: placed(placement, CONFIG, {"data": 2, "toy": 2}, dims).summed for dims in (("embed",), ("mlp",))}
    assert summed == {("embed",): ("data", "toy"), ("mlp",): ("data",)}
