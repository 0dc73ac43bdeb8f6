"""One spelling of a mesh, and no mesh that is not what it says."""

import math

import jax
import pytest

from strategies import STRATEGIES, Infeasible, MeshSpec
from strategies.mesh import AXES, factorisations


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12, 64])
def test_parse_and_print_are_inverse(devices):
    """Every mesh over every axis reads back as itself, and has as many devices as it was made for."""
    meshes = list(factorisations(AXES, devices))
    assert [MeshSpec.parse(str(mesh)) for mesh in meshes] == meshes
    assert {mesh.size for mesh in meshes} == {devices}


def test_factorisations_are_all_there_once():
    """8 = 2 x 2 x 2 over 3 axes: as many meshes as ways to give 3 factors of two to 3 axes, C(5, 2)."""
    meshes = list(factorisations(("data", "pipeline", "tensor"), 8))
    assert len(meshes) == len(set(meshes)) == math.comb(5, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mesh '' cannot be read; write it as data=2,tensor=4"),
        ("data", "mesh 'data' cannot be read"),
        ("data=2;tensor=2", "cannot be read"),
        ("data=x", "cannot be read"),
        ("data=-2", "cannot be read"),
        ("data=0", "mesh axis data=0; it must be at least 1"),
        ("expert=2", "unknown mesh axis 'expert'; it can be data, fsdp, pipeline, context, tensor"),
        ("data=2,data=2", "mesh axes data, data repeat or are out of order"),
        ("tensor=2,data=2", "mesh axes tensor, data repeat or are out of order; the order is data, fsdp"),
    ],
)
def test_what_is_no_mesh_is_refused(text, message):
    """The error shows what was read and how to write it."""
    with pytest.raises(Infeasible, match=message):
        MeshSpec.parse(text)


@pytest.mark.parametrize(("text", "given"), [("data=2", 8), ("data=2,tensor=4", 4), ("tensor=16", 8)])
def test_a_mesh_leaves_no_device_unused_and_needs_none_that_is_not_there(text, given):
    """A mesh of another size than the devices given is refused, never trimmed."""
    mesh = MeshSpec.parse(text)
    with pytest.raises(Infeasible, match=f"mesh {text} takes {mesh.size} devices and {given} are given"):
        mesh.over(AXES, jax.devices()[:given])


def test_an_axis_that_a_strategy_does_not_use_is_refused():
    """A step over a mesh axis that its strategy ignores would compute the same thing many times over."""
    with pytest.raises(Infeasible, match="mesh tensor=8 has the axis tensor; it can be fsdp"):
        MeshSpec.parse("tensor=8").over(STRATEGIES["fsdp"].axes)
