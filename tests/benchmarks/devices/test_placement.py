"""Where the devices of a mesh lie in an absent topology: torus coordinates and hosts."""

import math
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from benchmarks.devices.placement import device_count, topology_mesh
from benchmarks.devices.topology import Topology
from benchmarks.simulate.links import bandwidth, extents, group_along, mesh_group
from strategies import MeshSpec
from strategies.device_mesh import device_mesh
from strategies.mesh import all_axes, factorisations

V5P = Topology.parse("v5p:4x4x4")
NO_TPU = V5P.compiler_version is None


@pytest.fixture
def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiler of accelerators is installed."""
    monkeypatch.setattr(Topology, "compiler_version", None)
    topology_mesh.cache_clear()
    yield
    topology_mesh.cache_clear()


@pytest.fixture
def libtpu() -> None:
    """The compiler of TPUs is installed."""


@pytest.mark.usefixtures("nothing_compiles")
def test_chips_are_in_order_of_their_shape() -> None:
    """Devices follow the order of the torus coordinates: the last mesh axis lies along the last dim."""
    mesh = topology_mesh(Topology.parse("v5e:2x4"), MeshSpec.parse("data=2,context=4"))
    assert mesh.axis_names == ("data", "context")
    assert [[device.coords for device in row] for row in mesh.devices] == [[(i, j) for j in range(4)] for i in range(2)]


@pytest.mark.parametrize(
    "fixture",
    [
        "nothing_compiles",
        pytest.param("libtpu", marks=pytest.mark.skipif(NO_TPU, reason="takes the tpu extra: pip install -e '.[tpu]'")),
    ],
)
@pytest.mark.parametrize(
    ("text", "mesh", "block", "links"),
    [
        ("v5e:16x16", "fsdp=32,tensor=8", [2, 4], {"tensor": 2, "fsdp": 2 / 2 + 2 / 4}),
        ("v5e:4x4", "data=4,tensor=4", [2, 2], {"tensor": 2, "data": 1 / 2 + 1 / 2}),
        ("v6e:16x16", "pipeline=64,context=4", [1, 4], {"context": 1, "pipeline": 2 + 2 / 4}),
    ],
)
def test_chips_of_the_innermost_axis_lie_in_two_rows(
    text: str, mesh: str, block: list[int], links: dict[str, float], fixture: str, request: pytest.FixtureRequest
) -> None:
    """With and without the compiler, a group of tensor or fsdp on v5e is a block of two rows, and bandwidths agree.

    Groups that are not neighbours share the links between, and other axes have a part of a row.
    """
    request.getfixturevalue(fixture)
    topology = Topology.parse(text)
    assert topology.chip
    placed = topology_mesh(topology, MeshSpec.parse(mesh))
    inner = placed.axis_names[-1]
    assert sorted(extents(group_along(placed, (inner,))))[-2:] == block
    for axis, count in links.items():
        found = bandwidth(topology.chip, "all_gather", mesh_group(topology.chip, placed, (axis,)))
        assert found == pytest.approx(count * topology.chip.link_bytes_per_second)


@pytest.mark.usefixtures("nothing_compiles")
def test_gpus_and_virtual_devices_are_on_their_hosts() -> None:
    """Neighbouring GPUs share a host, virtual devices one or as many as are asked for, and a chip's two cores its
    coordinates.
    """
    hosts = topology_mesh(Topology.parse("h100:2x4"), MeshSpec.parse("fsdp=8")).devices
    assert [device.process_index for device in hosts] == [0] * 4 + [1] * 4
    for shape, processes in (((8,), [0] * 8), ((4, 2), [0, 0, 1, 1, 2, 2, 3, 3])):
        virtual = topology_mesh(Topology("cpu", shape), MeshSpec.parse("data=8")).devices
        assert [device.process_index for device in virtual] == processes
    cores = topology_mesh(Topology.parse("tpu7x:2x2x1"), MeshSpec.parse("data=8")).devices
    assert [device.coords for device in cores[:4]] == [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 0)]


@pytest.mark.skipif(NO_TPU, reason="takes the tpu extra: pip install -e '.[tpu]'")
@pytest.mark.parametrize("text", ["v5p:4x4x4", "v5e:4x4", "tpu7x:2x2x1"])
def test_every_factorisation_is_a_mesh_of_a_torus(text: str) -> None:
    """Every factorisation of a slice's devices is a mesh with each device once, even if an axis takes part of a dim."""
    topology = Topology.parse(text)
    assert len(topology.devices()) == device_count(topology)
    for spec in factorisations(all_axes(), device_count(topology)):
        mesh = device_mesh(spec, all_axes(), topology.devices())
        assert dict(mesh.shape) == {axis: spec.sizes.get(axis, 1) for axis in all_axes()}
        assert {device.id for device in mesh.devices.flat} == {device.id for device in topology.devices()}


def test_an_axis_may_have_a_part_of_a_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `jax.make_mesh` refuses to split a dim of the torus, the mesh is made without it."""
    spec = MeshSpec.parse("data=4,tensor=2")
    usual = device_mesh(spec, ("data", "tensor"), jax.devices()[:8])

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("Failed to find assignment for logical_axis_index 1 of size 2")

    monkeypatch.setattr(jax, "make_mesh", refuse)
    assert device_mesh(spec, ("data", "tensor"), jax.devices()[:8]) == usual


def test_a_placed_mesh_has_every_device() -> None:
    """A placed mesh has all devices of a topology, two for each chip of tpu7x."""
    for text in ("h100:4x8", "cpu:6", "tpu7x:4x4x4"):
        topology = Topology.parse(text)
        count = device_count(topology)
        assert count == math.prod(topology.shape) * (2 if "7x" in text else 1)
        assert np.size(topology_mesh(topology, MeshSpec.parse(f"data={count}")).devices) == count
