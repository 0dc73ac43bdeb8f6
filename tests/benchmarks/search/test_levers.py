"""Levers: one change away from a candidate, faster, and of a resource that it then waits less for."""

import math
from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.search.advised import limits, predicted, usable_bytes, waiting_seconds
from benchmarks.search.levers import LEAST_SHARE, change_of, lever
from strategies import MeshSpec
from tests.benchmarks.search.test_advised import H100S, TOPOLOGY, choices

EIGHT = Topology.parse("h100:8x8")
SLOW = H100S.with_changes({"inter_host_bandwidth": "0.05x"})


@pytest.fixture(scope="module")
def ranked():
    """Candidates on eight hosts with a slow network between them."""
    return choices(SLOW, EIGHT, remats=("none", "full"), strategies=("data", "hsdp", "zero1"))


def found(choice, ranked, its=SLOW):
    """The lever of a choice."""
    return lever(choice, limits(choice, its, choice.case.topology), ranked, its)


def test_a_slow_network_is_lifted_by_sharding_inside_a_host(ranked):
    """Data parallelism over all devices waits for the network; sharding weights inside a host lifts that."""
    (slow,) = [each for each in ranked.of_each_layout() if each.case.strategy == "zero1"]
    lifts = found(slow, ranked)
    assert lifts
    assert lifts.resource == "network between hosts"
    assert lifts.share == limits(slow, SLOW, EIGHT)["network between hosts"] > 0.5
    strategy, mesh = lifts.change.split()
    assert strategy == "hsdp"
    assert MeshSpec.parse(mesh).sizes["fsdp"] >= 8
    assert lifts.saves > 0.3


def test_a_lever_is_the_fastest_neighbour(ranked):
    """No candidate that fits and is one change away saves more, and the one named saves what is said."""
    checked = 0
    for each in ranked.best[::3]:
        near = [other for other in ranked.best if change_of(each.case, other.case)]
        best = min(other.step_seconds for other in near)
        lifts = found(each, ranked)
        if best >= (1 - LEAST_SHARE) * each.step_seconds:
            assert lifts is None or lifts.lacking_bytes > 0
            continue
        assert lifts
        assert lifts.saves == pytest.approx(1 - best / each.step_seconds)
        named = next(other for other in near if change_of(each.case, other.case) == lifts.change)
        assert named.step_seconds == best
        after = waiting_seconds(named, lifts.resource, SLOW, EIGHT)
        assert after < lifts.share * each.step_seconds
        assert lifts.lacking_bytes == 0
        checked += 1
    assert checked > 3


def test_where_nothing_that_fits_is_faster_memory_may_be_the_way_out():
    """The best recomputes because memory is small; a device with so much more need not."""
    small = replace(H100S, chip=replace(H100S.chip, memory_bytes=20 * 2**30))
    ranked = choices(small, strategies=("fsdp",), microbatches=(1,), remats=("none", "full"))
    lifts = found(ranked.best[0], ranked, small)
    assert lifts
    assert lifts.change == "remat=none"
    larger = [each for each in ranked.larger if change_of(ranked.best[0].case, each[0]) == lifts.change]
    (other,) = (predicted(*each, small, TOPOLOGY) for each in larger)
    assert lifts.lacking_bytes == math.ceil(other.needed_bytes - usable_bytes(small)) > 0
    assert lifts.saves == pytest.approx(1 - other.step_seconds / ranked.best[0].step_seconds)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"remat": "none"}, "remat=none"),
        ({"microbatches": 4}, "4 microbatches"),
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
    case = choices(H100S, topology=Topology.parse("h100:2x8"), microbatches=(1,), **asked).best[0].case
    case = replace(case, options=(("gather", "layer"),))
    assert change_of(case, replace(case, **changes)) == said
