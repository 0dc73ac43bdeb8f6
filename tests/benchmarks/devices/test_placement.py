"""Where the devices of a mesh lie in an absent topology: torus coordinates and hosts."""

import math

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.placement import device_count, topology_mesh
from benchmarks.devices.topology import Topology
from benchmarks.simulate.links import bandwidth, extents, group_along, mesh_group
from strategies import MeshSpec
from strategies.backends.device_mesh import device_mesh
from strategies.mesh import all_axes, factorisations

TORI = {
    "v4": ["v4:2x2x1", "v4:2x2x4", "v4:4x4x4"],
    "v5e": ["v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:8x8"],
    "v5p": ["v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4"],
    "v6e": ["v6e:2x2", "v6e:2x4", "v6e:4x4", "v6e:4x8"],
    "tpu7x": ["tpu7x:2x2x1", "tpu7x:2x2x2", "tpu7x:2x2x4", "tpu7x:4x4x4"],
}
"""Kinds of TPUs -> slices on which JAX arranges devices in different ways."""


def places(mesh: Mesh) -> list[tuple[tuple[int, ...], int]]:
    """Coordinates and core of each device of a mesh, in order."""
    return [(tuple(device.coords), device.core_on_chip) for device in mesh.devices.flat]


def test_predictions_do_not_ask_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of devices is decided without the compiler, whether or not it is installed."""
    monkeypatch.setattr(Topology, "compiler_version", property(lambda _: pytest.fail("the compiler is looked for")))
    monkeypatch.setattr(Topology, "devices", lambda _: pytest.fail("the compiler is loaded"))
    topology_mesh.cache_clear()
    for kind in CHIPS:
        for text in TORI.get(kind, [f"{kind}:2x4"]):
            topology = Topology.parse(text)
            assert topology_mesh(topology, MeshSpec.parse(f"data={device_count(topology)}"))


@pytest.mark.libtpu
@pytest.mark.parametrize("text", [text for kind in CHIPS for text in TORI.get(kind, [])])
def test_positions_are_those_of_steps(text: str) -> None:
    """On meshes of each kind of TPU, at most 100 a slice, predictions have the order of devices of compiled steps."""
    topology = Topology.parse(text)
    specs = list(factorisations(all_axes(), device_count(topology)))
    for spec in specs[:: math.ceil(len(specs) / 100)]:
        assert places(topology_mesh(topology, spec)) == places(device_mesh(spec, all_axes(), topology.devices()))


@pytest.mark.parametrize(
    ("text", "mesh", "group"),
    [
        # Golden: JAX 0.10.2 and libtpu 0.0.42.1. An axis takes whole dims of the torus where it can.
        ("v4:2x2x4", "data=4,tensor=4", [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]),
        ("v5p:2x2x4", "fsdp=4,tensor=4", [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]),
        ("v5p:4x4x4", "fsdp=16,tensor=4", [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]),
        ("tpu7x:2x2x1", "data=4,tensor=2", [(0, 0, 0), (0, 0, 0)]),
        ("v5e:2x4", "data=2,context=4", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]),
    ],
)
def test_the_innermost_axis_has_known_chips(text: str, mesh: str, group: list[tuple[int, ...]]) -> None:
    """The first devices along the innermost axis are those that JAX takes for steps, without libtpu as well."""
    placed = topology_mesh(Topology.parse(text), MeshSpec.parse(mesh))
    assert [device.coords for device in group_along(placed, placed.axis_names[-1:])] == group


@pytest.mark.parametrize(
    ("text", "mesh", "block", "links"),
    [
        ("v5e:16x16", "fsdp=32,tensor=8", [2, 4], {"tensor": 2, "fsdp": 2 / 2 + 2 / 4}),
        ("v5e:4x4", "data=4,tensor=4", [2, 2], {"tensor": 2, "data": 1 / 2 + 1 / 2}),
        ("v6e:16x16", "pipeline=64,context=4", [1, 4], {"context": 1, "pipeline": 2 + 2 / 4}),
    ],
)
def test_chips_of_the_innermost_axis_lie_in_two_rows(
    text: str, mesh: str, block: list[int], links: dict[str, float]
) -> None:
    """A group of tensor or fsdp on v5e is a block of two rows.

    Groups that are not neighbours share the links between, and other axes have a part of a row.
    """
    topology = Topology.parse(text)
    assert topology.chip
    placed = topology_mesh(topology, MeshSpec.parse(mesh))
    inner = placed.axis_names[-1]
    assert sorted(extents(group_along(placed, (inner,))))[-2:] == block
    for axis, count in links.items():
        found = bandwidth(topology.chip, "all_gather", mesh_group(topology.chip, placed, (axis,)))
        assert found == pytest.approx(count * topology.chip.link_bytes_per_second)


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
    assert [device.coords for device in cores[:4]] == [(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0)]


@pytest.mark.libtpu
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
