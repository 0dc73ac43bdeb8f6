"""Mesh specifications: one spelling, all factorisations, and the errors of a mesh that does not fit."""

import math

import jax
import pytest

from strategies import STRATEGIES, Infeasible, MeshSpec
from strategies.backends.device_mesh import device_mesh
from strategies.mesh import all_axes, factorisations


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12, 64])
def test_parse_and_print_are_inverse(devices):
    """Parsing inverts printing for every mesh over every axis, and a mesh has as many devices as it was made for."""
    meshes = list(factorisations(all_axes(), devices))
    assert [MeshSpec.parse(str(mesh)) for mesh in meshes] == meshes
    assert {mesh.size for mesh in meshes} == {devices}


def test_factorisations_are_all_there_once():
    """8 = 2 x 2 x 2 over 3 axes has C(5, 2) factorisations, one for each way to give 3 factors to 3 axes."""
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
        ("data=0", "mesh axis data=0; it must be from 1 to 999,999,999"),
        ("model=2", "unknown mesh axis 'model'; it can be data, fsdp, pipeline, context, expert, tensor"),
        ("data=2,data=2", "mesh axes data, data repeat or are out of order"),
        ("tensor=2,data=2", "mesh axes tensor, data repeat or are out of order; the order is data, fsdp"),
    ],
)
def test_what_is_no_mesh_is_refused(text, message):
    """Text that is no mesh raises Infeasible with the text and how to write one."""
    with pytest.raises(Infeasible, match=message):
        MeshSpec.parse(text)


@pytest.mark.parametrize(("text", "given"), [("data=2", 8), ("data=2,tensor=4", 4), ("tensor=16", 8)])
def test_a_mesh_leaves_no_device_unused_and_needs_none_that_is_not_there(text, given):
    """A mesh of another size than the devices given is refused, never trimmed."""
    mesh = MeshSpec.parse(text)
    with pytest.raises(Infeasible, match=f"mesh {text} needs {mesh.size} devices, and got {given}"):
        device_mesh(mesh, all_axes(), jax.devices()[:given])


def test_an_axis_that_a_strategy_does_not_use_is_refused():
    """A mesh axis that a strategy does not have is refused, because devices along it would repeat the same work."""
    with pytest.raises(Infeasible, match="mesh tensor=8 has the axis tensor; it can be fsdp"):
        device_mesh(MeshSpec.parse("tensor=8"), STRATEGIES["fsdp"].axis_names)
