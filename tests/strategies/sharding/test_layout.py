"""Layouts: the formulas split weights as the steps do, and contradictory layouts are refused."""

import math

import jax
import pytest

from strategies import STRATEGIES, GPTConfig, Layout, Strategy, TrainConfig
from strategies.costs.predict import layouts_with_formulas, predict
from strategies.single import SINGLE

CONFIG = GPTConfig(layers=8, embed=64, heads=8, vocab=256, sequence=64)
MESHES = [
    (name, mesh)
    for name in layouts_with_formulas()
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


@pytest.mark.parametrize("layout", layouts_with_formulas().values(), ids=layouts_with_formulas())
def test_all_axes_leave_a_layout_as_it_is(layout):
    """Restricting a layout to all of its axes changes nothing; restricted to none it has no axes."""
    assert layout.along(layout.axes) == layout
    assert layout.along(()).axes == frozenset()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": "toy"}, "batch='toy'; it must be a list"),
        ({"dims": {"head_features": "toy"}}, "dims.*'toy'}; it must be a list"),
        ({"batch": ("toy",), "tokens": ("toy",)}, "batch and tokens have the axis toy twice; leave one of them out"),
        ({"batch": ("toy",), "dims": {"mlp": ("toy",)}}, "toy splits mlp of the weights, and batch or tokens; take"),
        ({"shards": "toy"}, "shards='toy'; it must be a list"),
        ({"shards": ("toy",)}, "shards has the axis toy, which does not split the batch; add it to batch"),
        ({"updates": ("toy",)}, "updates has the axis toy, which does not split the batch; add it to batch"),
        ({"dims": {"head": ("toy",)}}, "no weight has the dim 'head'; dims are layers, vocab, "),
        (
            {"batch": ("data", "fsdp"), "shards": ("fsdp",), "updates": ("data",)},
            "weights are sharded over fsdp, and so are their updates; ",
        ),
        ({"scatters_each": True}, "scatters_each says when gradients are scattered over updates; give that, too"),
    ],
    ids=str,
)
def test_contradictory_layouts_are_refused(fields, message):
    """A contradictory layout raises a ValueError when it is made."""
    with pytest.raises(ValueError, match=message):
        Layout(**fields)


def test_a_strategy_has_all_axes_of_its_layout():
    """A strategy whose layout has an axis that it lacks raises a ValueError."""
    with pytest.raises(ValueError, match="the layout of toy splits over fsdp; its axes are toy"):
        Strategy("toy", ("toy",), SINGLE.build, layout=Layout(batch=("toy", "fsdp")))
