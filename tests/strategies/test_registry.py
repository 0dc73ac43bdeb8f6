"""The registry of strategies, their meshes, and the errors that each raises before compilation."""

import dataclasses
from typing import Any

import jax
import pytest

from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec, TrainConfig


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


@pytest.mark.parametrize(
    ("name", "mesh", "options", "message"),
    [
        ("single", "data=2", {}, "single runs on one device; its mesh is data=1, not data=2"),
        (
            "data",
            "data=8",
            {"batch_size": 12},
            "batch_size=12; batch_size can be 8 or 16; or the product can be 1",
        ),
        ("data", "data=8", {"microbatches": 4}, "data=8 x microbatches=4 does not divide batch_size=16"),
        ("fsdp", "fsdp=8", {"embed": 12, "heads": 4}, "fsdp=8 does not divide embed=12; fsdp can be 1, 2 or 4$"),
        ("zero1", "data=8", {"embed": 12, "heads": 4}, "data=8 does not divide embed=12; data can be 1, 2 or 4$"),
        ("hsdp", "data=2,fsdp=4", {"mlp": 102}, "fsdp=4 does not divide mlp=102; fsdp can be 1 or 2$"),
        ("hsdp", "data=2,fsdp=4", {"batch_size": 4}, "data=2 x fsdp=4 x microbatches=1 does not divide batch_size=4"),
        ("fsdp", "fsdp=8", {"batch_size": 4}, "fsdp=8 x microbatches=1 does not divide batch_size=4"),
        ("tensor", "tensor=8", {"heads": 4}, "tensor=8 does not divide heads=4; tensor can be 1, 2 or 4"),
        ("tensor", "tensor=8", {"mlp": 100}, "tensor=8 does not divide mlp=100; tensor can be 1, 2 or 4$"),
        (
            "tensor",
            "tensor=8",
            {"sequence": 20},
            "tensor=8 .* sequence=20; .* or tensor=8 with sequence_parallel",
        ),
        (
            "pipeline",
            "pipeline=8",
            {"layers": 6},
            "6 blocks are too few for 8 parts .*; pipeline can be 1, 2, 3",
        ),
        ("pipeline", "pipeline=8", {"schedule": "interleaved", "microbatches": 8}, "8 blocks are too few for 16 parts"),
        ("pipeline", "pipeline=4", {"schedule": "interleaved"}, "pipeline=4 does not divide microbatches=1, as an int"),
        ("three_d", "pipeline=4,tensor=2", {"layers": 2}, "2 blocks are too few for 4 parts"),
        ("three_d", "pipeline=4,tensor=2", {"heads": 1}, "tensor=2 does not divide heads=1; tensor can be 1"),
        ("three_d", "data=4,tensor=2", {"batch_size": 6}, "data=4 x microbatches=1 does not divide batch_size=6"),
        ("auto", "pipeline=2", {}, "mesh pipeline=2 has the axis pipeline; it can be data, fsdp, expert, tensor"),
        ("auto", "fsdp=8", {"embed": 12, "heads": 4}, "fsdp=8 does not divide embed=12; fsdp can be 1, 2 or 4$"),
        ("auto", "fsdp=2,tensor=4", {"heads": 2}, "tensor=4 does not divide heads=2; tensor can be 1 or 2"),
        ("auto", "fsdp=4,tensor=2", {"batch_size": 6}, "fsdp=4 x microbatches=1 does not divide batch_size=6"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_compiled(name, mesh, options, message):
    """`build` raises Infeasible with the numbers and the legal values."""
    with pytest.raises(Infeasible, match=message):
        build(name, mesh, **options)


def test_tokens_of_another_shape_are_refused():
    """`place` refuses tokens of another shape, which would compile a second program."""
    step = build("data", "data=2")
    with pytest.raises(ValueError, match=r"tokens of shape \(8, 65\); this step takes \(16, 65\)"):
        step.place(jax.numpy.zeros((8, 65), "int32"))
