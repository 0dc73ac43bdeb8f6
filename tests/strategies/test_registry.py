"""The registry of strategies, their meshes, and the errors that each raises before compilation."""

import dataclasses
from typing import Any

import jax
import pytest

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig


def build(name, mesh, batch_size=16, microbatches=1, schedule: Any = "1f1b", **sizes):
    """A step of the nano preset with some sizes replaced, on as many devices as the mesh takes."""
    config, mesh = dataclasses.replace(PRESETS["nano"], **sizes), MeshSpec.parse(mesh)
    train = TrainConfig(batch_size=batch_size, microbatches=microbatches, schedule=schedule)
    return STRATEGIES[name].build(config, mesh, train, jax.devices()[: mesh.size])


def test_a_strategy_is_found_by_its_own_name():
    """The registry's key is the strategy's name."""
    assert {name: strategy.name for name, strategy in STRATEGIES.items()} == {name: name for name in STRATEGIES}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_meshes_use_exactly_the_devices(name, devices):
    """Every mesh that a strategy offers for a number of devices uses all of them, over the strategy's own axes."""
    for mesh in STRATEGIES[name].meshes(devices):
        assert mesh.size == devices
        assert set(mesh.sizes) <= set(STRATEGIES[name].axis_names)


def test_a_strategy_that_the_compiler_partitions_has_twins_by_hand():
    """auto offers meshes over the sets of axes that it names, and the twin that it names for a set has these axes."""
    auto = STRATEGIES["auto"]
    assert [str(mesh) for mesh in auto.meshes(8)] == [
        "tensor=8",
        "expert=8",
        "fsdp=2,tensor=4",
        "fsdp=2,expert=4",
        "fsdp=4,tensor=2",
        "fsdp=4,expert=2",
        "fsdp=8",
        "data=2,expert=4",
        "data=4,expert=2",
        "data=8",
    ]
    for axes, name in auto.twins.items():
        assert set(axes) <= set(STRATEGIES[name].axis_names)


def test_tokens_of_another_shape_are_refused():
    """`place` refuses tokens of another shape, which would compile a second program."""
    step = build("data", "data=2")
    with pytest.raises(ValueError, match=r"tokens of shape \(8, 65\); this step takes \(16, 65\)"):
        step.place(jax.numpy.zeros((8, 65), "int32"))
