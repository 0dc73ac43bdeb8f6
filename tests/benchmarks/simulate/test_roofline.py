"""The roofline: the least time of a step by a chip's published figures."""

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.program.collectives import Collective
from benchmarks.program.work import Work
from benchmarks.simulate.links import bandwidth, mesh_group
from benchmarks.simulate.program import Priced, Roofline, ideal

V5P, H100 = CHIPS["v5p"], CHIPS["h100"]


def mesh(sizes: dict[str, int], place) -> Any:
    """A mesh of devices that have a location and nothing else."""
    devices = np.array([place(i) for i in range(math.prod(sizes.values()))], dtype=object)
    return SimpleNamespace(devices=devices.reshape(tuple(sizes.values())), axis_names=tuple(sizes))


def collective_bandwidth(chip: Chip, mesh: Any, kind: str, axes: tuple[str, ...]) -> float:
    """Bytes per second that a device sends along some axes."""
    return bandwidth(chip, kind, mesh_group(chip, mesh, axes))


def sent(kind: str, axes: tuple[str, ...], sent_bytes: float) -> Collective:
    """A collective by which a device sends this many bytes."""
    return Collective(kind, axes, 1, False, Fraction(sent_bytes))


def cube(index: int) -> Any:
    """A chip of a 4x4x4 torus."""
    return SimpleNamespace(coords=(index // 16, index // 4 % 4, index % 4))


def gpu(index: int) -> Any:
    """A GPU of hosts with eight each."""
    return SimpleNamespace(process_index=index // 8)


@pytest.mark.parametrize(
    ("sizes", "kind", "axes", "links"),
    [
        ({"data": 16, "tensor": 4}, "all_reduce", ("tensor",), 2),  # a ring along one dim, both ways
        ({"data": 16, "tensor": 4}, "all_reduce", ("data",), 4),
        ({"data": 16, "tensor": 4}, "all_reduce", ("data", "tensor"), 6),
        ({"fsdp": 64}, "all_gather", ("fsdp",), 6),
        ({"data": 16, "pipeline": 4}, "permute", ("pipeline",), 1),  # to one neighbour
        ({"data": 16, "context": 4}, "all_to_all", ("context",), 2),  # a ring of 4: one hop on average
        ({"context": 64}, "all_to_all", ("context",), 6 / 3),  # three hops on average
        # Groups with gaps share the links in them with the groups that fill the gaps.
        ({"data": 4, "fsdp": 2, "tensor": 8}, "all_gather", ("fsdp",), 2 / 2),  # every second of a ring of 4
        ({"data": 2, "fsdp": 2, "tensor": 16}, "all_gather", ("data",), 2 / 2),
        ({"data": 2, "fsdp": 32}, "all_gather", ("data",), 2 / 2),
        ({"data": 8, "tensor": 8}, "all_gather", ("data",), 2 + 2 / 2),
        ({"data": 4, "fsdp": 2, "tensor": 8}, "permute", ("fsdp",), 1 / 2),
        ({"data": 8, "tensor": 8}, "permute", ("data",), 1 / 2),
        ({"data": 2, "fsdp": 32}, "all_to_all", ("data",), 2 / 2),
    ],
)
def test_a_torus_has_links_along_each_dim(sizes, kind, axes, links):
    """The bandwidth of a collective is that of the links its group can use at once, less what other groups use."""
    speed = collective_bandwidth(V5P, mesh(sizes, cube), kind, axes)
    assert speed == pytest.approx(links * V5P.link_bytes_per_second)


def chip_of(shape: tuple[int, ...]):
    """The chips of a slice of that shape, in row-major order."""
    return lambda index: SimpleNamespace(coords=tuple(map(int, np.unravel_index(index, shape))))


@pytest.mark.parametrize(
    ("kind", "shape", "axes", "links"),
    [
        ("v5e", (4, 4), ("data",), 1),  # no wraparound but along 16
        ("v5e", (4, 4), ("data", "tensor"), 2),
        ("v5e", (8, 16), ("data",), 1),
        ("v5e", (8, 16), ("tensor",), 2),
        ("v6e", (16, 16), ("data", "tensor"), 4),
        ("v5p", (8, 4, 4), ("data",), 2),  # cubes of 4x4x4, joined in rings
        ("v5p", (2, 4, 4), ("fsdp",), 1),  # less than a cube
        ("v4", (2, 2, 1), ("data",), 1),
    ],
)
def test_a_dim_of_a_slice_is_a_ring_or_a_line(kind, shape, axes, links):
    """A ring sends over a link each way, a line over the one at its ends (How to Scale Your Model, part 2)."""
    names = ["data", "tensor"] if len(shape) == 2 else ["data", "fsdp", "tensor"]
    sizes = dict(zip(names, shape, strict=True))
    speed = collective_bandwidth(CHIPS[kind], mesh(sizes, chip_of(shape)), "all_gather", axes)
    assert speed == pytest.approx(links * CHIPS[kind].link_bytes_per_second)


def test_a_part_of_a_ring_is_a_line():
    """A group that is part of a ring has no link from its last chip to its first, so it is a line."""
    spread = mesh({"data": 2, "fsdp": 4, "tensor": 16}, chip_of((8, 4, 4)))
    assert collective_bandwidth(V5P, spread, "all_gather", ("fsdp",)) == V5P.link_bytes_per_second
    assert collective_bandwidth(V5P, spread, "all_gather", ("data", "fsdp")) == 2 * V5P.link_bytes_per_second


def test_an_all_gather_on_v5e_takes_as_long_as_published():
    """An all-gather of 32 MiB over 4 chips of v5e:8x4 takes 560 us at 45 GB/s a link.

    The source is How to Scale Your Model, part 3, pop quiz 2, where 680 us were measured. Two links would take half.
    """
    usual = ideal("v5e")
    slower = usual.with_changes({"link_bandwidth": "45GB/s"})
    spread = mesh({"data": 8, "tensor": 4}, chip_of((8, 4)))
    work = Work((sent("all_gather", ("tensor",), 2**25 * 3 / 4),))
    for its, seconds in ((slower, 560e-6), (usual, 503e-6)):
        assert Priced(spread, its, "bfloat16").roofline(work).network_seconds == pytest.approx(seconds, rel=2e-3)


@pytest.mark.parametrize(
    ("sizes", "kind", "axes", "bound"),
    [
        ({"data": 2, "tensor": 8}, "all_gather", ("tensor",), H100.link_bytes_per_second),  # in one host
        ({"data": 2, "tensor": 8}, "all_gather", ("data",), H100.network_bytes_per_second),  # one GPU of each
        # One of the 15 shards that a GPU sends crosses hosts: 8 network cards share what a host receives.
        ({"fsdp": 16}, "all_gather", ("fsdp",), H100.link_bytes_per_second),
        ({"fsdp": 64}, "all_gather", ("fsdp",), 9 * H100.network_bytes_per_second),
        ({"context": 16}, "all_to_all", ("context",), 15 / 8 * H100.network_bytes_per_second),
        ({"pipeline": 16}, "permute", ("pipeline",), H100.network_bytes_per_second),
    ],
)
def test_hosts_are_a_switch_each_and_a_network(sizes, kind, axes, bound):
    """Within a host the switch bounds a collective; between hosts the network does, shared by the GPUs of a host."""
    assert collective_bandwidth(H100, mesh(sizes, gpu), kind, axes) == pytest.approx(bound)


def test_the_busiest_resource_is_the_bound():
    """A step takes at least the largest of its compute, its memory and its network times.

    Collectives on the same links add up, and those on other links go side by side.
    """
    collectives = (
        sent("all_gather", ("tensor",), 2e11),
        sent("permute", ("tensor",), 1e11),
        sent("permute", ("data",), 1e11),
    )
    cubes = Priced(mesh({"data": 16, "tensor": 4}, cube), ideal("v5p"), "bfloat16")
    least = cubes.roofline(Work(collectives, int(459e12), memory_bytes=int(2 * 2765e9)))
    parts = least.compute_seconds, least.memory_seconds, least.network_seconds
    assert parts == pytest.approx((1.0, 2.0, 1.0 + 1.0))
    assert (Roofline(1, 2, 3).bound, Roofline(1, 2, 3).step_seconds) == ("network", 3)
    assert (Roofline(5, 2, 3).bound, Roofline(1, 2, 1).bound) == ("compute", "memory")
