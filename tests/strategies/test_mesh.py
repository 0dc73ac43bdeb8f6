"""Mesh specifications: one spelling, and all factorisations."""

import math

import pytest

from strategies import MeshSpec
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
