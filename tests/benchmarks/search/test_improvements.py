"""Improvements: one change away from a candidate, faster, and of a resource that it then waits less for."""

import math
from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.search.improvements import LEAST_SHARE, change_of, improvement
from benchmarks.search.ranking import usable_bytes
from strategies import MeshSpec
from tests.benchmarks.search.test_ranking import H100S, ranking

EIGHT = Topology.parse("h100:8x8")
SLOW = H100S.with_changes({"inter_host_bandwidth": "0.05x"})


@pytest.fixture(scope="module")
def found():
    """Candidates on eight hosts with a slow network between them."""
    return ranking(SLOW, EIGHT, remats=("none", "full"), strategies=("data", "hsdp", "zero1"))


def test_sharding_inside_a_host_helps_on_a_slow_network(found):
    """Data parallelism over all devices waits for the network; sharding weights over fewer waits less: the step gets as
    much shorter as what it has to send.
    """
    (slow,) = [each for each in found.best_per_layout if each.case.strategy == "zero1"]
    better = improvement(slow, found)
    assert better
    assert better.resource == "network between hosts"
    assert better.share == slow.limits["network between hosts"] > 0.5
    strategy, mesh = better.change.split()
    assert strategy == "hsdp"
    assert MeshSpec.parse(mesh).sizes["fsdp"] >= 8
    after = next(each for each in found.fitting if change_of(slow.case, each.case) == better.change)
    assert better.saves == pytest.approx(1 - after.bound_seconds / slow.bound_seconds, abs=0.05)


def test_an_improvement_is_the_fastest_neighbour(found):
    """No candidate that fits and is one change away saves more, and the one named saves what is said."""
    checked = 0
    for each in found.fitting[::3]:
        near = [other for other in found.fitting if change_of(each.case, other.case)]
        best = min(other.step_seconds for other in near)
        better = improvement(each, found)
        if best >= (1 - LEAST_SHARE) * each.step_seconds:
            assert better is None or better.lacking_bytes > 0
            continue
        assert better
        assert better.saves == pytest.approx(1 - best / each.step_seconds)
        named = next(other for other in near if change_of(each.case, other.case) == better.change)
        assert named.step_seconds == best
        after = named.waiting_seconds(better.resource)
        assert after < better.share * each.step_seconds
        assert better.lacking_bytes == 0
        checked += 1
    assert checked > 3


def test_where_nothing_that_fits_is_faster_memory_may_be_the_way_out():
    """The best recomputes because memory is small; a device with so much more need not."""
    small = replace(H100S, chip=replace(H100S.chip, memory_bytes=8 * 2**30))
    limited = ranking(small, strategies=("fsdp",), microbatches=(1,), remats=("dots", "full"))
    better = improvement(limited.fitting[0], limited)
    assert better
    assert better.change == "remat=dots"
    first = limited.fitting[0]
    (other,) = (each for each in limited.too_large if change_of(first.case, each.case) == better.change)
    assert better.lacking_bytes == math.ceil(other.needed_bytes - usable_bytes(small)) > 0
    assert better.saves == pytest.approx(1 - other.step_seconds / first.step_seconds)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"remat": "none"}, "remat=none"),
        ({"microbatches": 4}, "microbatches=4"),
        ({"options": (("gather", "step"),)}, "gather=step"),
        ({"strategy": "fsdp", "mesh": MeshSpec.parse("fsdp=16"), "options": (("gather", "layer"),)}, "fsdp fsdp=16"),
        ({"mesh": MeshSpec.parse("data=4,fsdp=4")}, "hsdp data=4,fsdp=4"),
        ({"mesh": MeshSpec.parse("data=4,fsdp=4"), "remat": "none"}, ""),
        ({"strategy": "three_d", "mesh": MeshSpec.parse("pipeline=2,context=2,tensor=4"), "options": ()}, ""),
    ],
)
def test_one_change_is_named_and_several_are_none(changes, said):
    """Moving devices between two axes is one change, also if it makes another strategy; options of one alone are not
    compared.
    """
    asked = {"strategies": ("hsdp",), "meshes": (MeshSpec.parse("data=2,fsdp=8"),), "remats": ("full",)}
    case = ranking(H100S, topology=Topology.parse("h100:2x8"), microbatches=(1,), **asked).fitting[0].case
    case = replace(case, options=(("gather", "layer"),))
    assert change_of(case, replace(case, **changes)) == said
