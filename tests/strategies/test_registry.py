"""The registry of strategies, and their meshes."""

import pytest

from strategies import STRATEGIES


def test_a_strategy_is_found_by_its_own_name():
    """The registry's key is the strategy's name; another name is not in it."""
    assert "zero3" not in STRATEGIES
    assert STRATEGIES.get("zero3") is None
    assert STRATEGIES["fsdp"].default_microbatches("fsdp=2", 8) == 1
    assert {name: strategy.name for name, strategy in STRATEGIES.items()} == {name: name for name in STRATEGIES}


@pytest.mark.parametrize("name", STRATEGIES)
def test_meshes_use_exactly_the_devices(name):
    """Every mesh that a strategy offers for a number of devices uses all of them, over the strategy's own axes."""
    for devices in (1, 2, 4, 8):
        meshes = STRATEGIES[name].meshes(devices)
        assert {mesh.size for mesh in meshes} <= {devices}
        assert {axis for mesh in meshes for axis in mesh.sizes} <= {*STRATEGIES[name].axis_names}


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
