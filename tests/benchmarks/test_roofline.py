"""The least time of a step is what a chip's published figures allow."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.chips import CHIPS
from benchmarks.roofline import Roofline, bytes_per_second, roofline

V5P, H100 = CHIPS["v5p"], CHIPS["h100"]


def mesh(sizes: dict[str, int], place) -> Any:
    """A mesh of devices of which only the place is known."""
    devices = np.array([place(i) for i in range(math.prod(sizes.values()))], dtype=object)
    return SimpleNamespace(devices=devices.reshape(tuple(sizes.values())), axis_names=tuple(sizes))


def cube(index: int) -> Any:
    """A chip of 4x4x4."""
    return SimpleNamespace(coords=(index // 16, index // 4 % 4, index % 4))


def gpu(index: int) -> Any:
    """One of 8 GPUs of a host."""
    return SimpleNamespace(process_index=index // 8)


@pytest.mark.parametrize(
    ("sizes", "kind", "axes", "links"),
    [
        ({"data": 16, "tensor": 4}, "all_reduce", ("tensor",), 2),  # a ring along one dim, both ways
        ({"data": 16, "tensor": 4}, "all_reduce", ("data",), 4),
        ({"data": 16, "tensor": 4}, "all_reduce", ("data", "tensor"), 6),
        ({"fsdp": 64}, "all_gather", ("fsdp",), 6),
        ({"data": 16, "pipeline": 4}, "permute", ("pipeline",), 1),  # to one neighbour
        ({"data": 16, "context": 4}, "all_to_all", ("context",), 2),  # a ring of 4: one link on the mean
        ({"context": 64}, "all_to_all", ("context",), 6 / 3),  # three on the mean
    ],
)
def test_a_torus_has_links_along_each_dim(sizes, kind, axes, links):
    """As many as the group of devices can use at once."""
    speed = bytes_per_second(V5P, mesh(sizes, cube), kind, axes)
    assert speed == pytest.approx(links * V5P.link_bytes_per_second)


@pytest.mark.parametrize(
    ("sizes", "kind", "axes", "bound"),
    [
        ({"data": 2, "tensor": 8}, "all_gather", ("tensor",), H100.link_bytes_per_second),  # in one host
        ({"data": 2, "tensor": 8}, "all_gather", ("data",), H100.network_bytes_per_second),  # one GPU of each
        # Of 15 parts that each passes on, one crosses: 8 network cards share what a host has to get.
        ({"fsdp": 16}, "all_gather", ("fsdp",), H100.link_bytes_per_second),
        ({"fsdp": 64}, "all_gather", ("fsdp",), 9 * H100.network_bytes_per_second),
        ({"context": 16}, "all_to_all", ("context",), 15 / 8 * H100.network_bytes_per_second),
        ({"pipeline": 16}, "permute", ("pipeline",), H100.network_bytes_per_second),
    ],
)
def test_hosts_are_a_switch_each_and_a_network(sizes, kind, axes, bound):
    """Inside of one the switch bounds, between them the network, shared where what all are to get crosses once."""
    assert bytes_per_second(H100, mesh(sizes, gpu), kind, axes) == pytest.approx(bound)


def test_the_slowest_part_is_the_bound():
    """A step that overlaps all it can still waits for its slowest part; collectives wait for each other."""
    sent = [("all_gather", ("tensor",), 2e11), ("permute", ("data",), 1e11)]
    least = roofline(V5P, mesh({"data": 16, "tensor": 4}, cube), 459e12, 2 * 2765e9, sent)
    parts = least.compute_seconds, least.memory_seconds, least.network_seconds
    assert parts == pytest.approx((1.0, 2.0, 1.0 + 1.0))
    assert (Roofline(1, 2, 3).bound, Roofline(1, 2, 3).step_seconds) == ("network", 3)
    assert (Roofline(5, 2, 3).bound, Roofline(1, 2, 1).bound) == ("compute", "memory")
