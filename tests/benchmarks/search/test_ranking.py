"""Candidates that fit are ranked by predicted seconds, and say what their steps wait for."""

import math
import pickle
from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.search.ranking import Ranking, judged, layout
from benchmarks.simulate.intervals import Widths
from benchmarks.simulate.machine import MEMORY_FRACTION
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies import MeshSpec
from strategies.gpt_config import GPTConfig
from tests.benchmarks.search.rankings import H100S, TOPOLOGY, ranking, space

SMALL = GPTConfig(layers=8, embed=128, heads=8, sequence=128)
"""Its kernels are shorter than their launches."""


@pytest.fixture(scope="module")
def found():
    """All candidates of gpt2-xl on 16 H100s."""
    return ranking(remats=("dots",))


def test_candidates_are_ranked_by_predicted_seconds(found):
    """The first is the fastest; each has the seconds that `predict_seconds` gives for its cost."""
    seconds = [each.step_seconds for each in found.fitting]
    assert seconds == sorted(seconds)
    assert len({each.case.strategy for each in found.fitting}) > 5
    for each in found.fitting[::50]:
        assert each.step_seconds == predict_seconds(each.cost, H100S, TOPOLOGY).step_seconds


def test_every_candidate_is_counted_once(found):
    """Those that fit, those that are too large and those that are infeasible are the search space."""
    assert len(found.fitting) + len(found.too_large) + len(found.infeasible) == len([*space(remats=("dots",)).cases()])


def test_what_does_not_fit_is_not_ranked(found):
    """With less memory, candidates that need more are counted as too large, and no other is lost."""
    limit = sorted(each.needed_bytes for each in found.fitting)[len(found.fitting) // 2]
    memory_bytes = math.ceil((limit + 1) / MEMORY_FRACTION)
    small = replace(H100S, chip=replace(H100S.chip, memory_bytes=memory_bytes))
    fewer = ranking(small, remats=("dots",))
    assert [each.case for each in fewer.fitting] == [each.case for each in found.fitting if each.needed_bytes <= limit]
    assert len(fewer.too_large) - len(found.too_large) == len(found.fitting) - len(fewer.fitting) > 0


def test_candidates_within_the_error_are_tied(found, monkeypatch):
    """Those that differ by less than the error of a pair; without an error only equal predictions are tied."""
    first, last = found.fitting[0].step_seconds, found.fitting[-1].step_seconds
    for pair, tied in ((0.0, sum(each.step_seconds == first for each in found.fitting)), (last / first, None)):
        monkeypatch.setattr("benchmarks.search.ranking.widths", lambda pair=pair: Widths({}, {}, pair))
        assert Ranking(found.fitting).tied == (tied or len(found.fitting))
    assert Ranking(()).tied == 0


def test_each_layout_has_its_fastest(found):
    """One candidate for each strategy and set of mesh axes, and none of the same layout is faster."""
    best = found.best_per_layout
    assert len(best) == len({layout(each.case) for each in found.fitting})
    for each in best:
        assert each is next(other for other in found.fitting if layout(other.case) == layout(each.case))


@pytest.mark.parametrize("name", ["flops", "hbm", "hbm_bandwidth", "link_bandwidth", "inter_host_bandwidth"])
@pytest.mark.parametrize("topology", ["h100:2x8", "h100:1x8", "v5e:4x4"], ids=str)
def test_twice_of_anything_makes_the_best_no_slower(name, topology):
    """The best of a search with more of a resource takes at most as long as the best without."""
    devices = Topology.parse(topology)
    its = machine("meshmark_gpus" if devices.platform == "cuda" else "meshmark_tpus", devices.kind)
    asked = {"topology": devices, "preset": "gpt2", "remats": ("dots",), "strategies": ("hsdp", "tensor", "pipeline")}
    before, after = (ranking(each, **asked) for each in (its, its.with_changes({name: "2x"})))
    assert before.fitting
    assert after.fitting[0].step_seconds <= before.fitting[0].step_seconds


PLANTED = {
    "matmuls": ({"flops": "0.01x"}, {}, "data=16"),
    "memory bandwidth": ({"hbm_bandwidth": "0.01x"}, {}, "data=16"),
    "links inside a host": ({"link_bandwidth": "0.002x"}, {}, "data=2,tensor=8"),
    "network between hosts": ({"inter_host_bandwidth": "0.001x"}, {}, "data=16"),
    "latency": ({}, {"network_seconds": 0.05}, "tensor=16"),
    "launches": ({}, {"kernel_seconds": 0.1}, "data=16"),
}
"""What a step waits for -> the specifications and constants that make it so, and a mesh that needs it."""


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_slow_is_named_first(name):
    """A step whose devices wait for one resource would save the most without it, by its share of the step."""
    changes, constants, mesh = PLANTED[name]
    slow = H100S.with_changes(changes)
    slow = replace(slow, constants=replace(slow.constants, **constants))
    spec = MeshSpec.parse(mesh)
    strategy = "three_d" if len(spec.sizes) > 1 else next(iter(spec.sizes))
    best = ranking(slow, preset="gpt3-1.3b", strategies=(strategy,), meshes=(spec,), microbatches=(1,)).fitting[0]
    found = best.limits
    assert next(iter(found)) == name
    assert found[name] > 0.5
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert all(-1e-9 <= share <= 1 for share in found.values())


def test_a_pipeline_with_few_microbatches_waits_for_its_bubble():
    """GPipe with eight stages and as many microbatches idles for nearly half of its step."""
    eight = Topology.parse("h100:1x8")
    options = (("schedule", ("gpipe",)),)
    found = ranking(topology=eight, strategies=("pipeline",), microbatches=(8,), options=options, remats=("dots",))
    assert found.fitting[0].limits["pipeline bubble"] == pytest.approx(7 / 15, abs=0.05)


def test_a_small_model_waits_for_launches():
    """Kernels that are shorter than their launches leave the device idle."""
    found = ranking(preset="small", config=SMALL, strategies=("data",), microbatches=(1,), batch_size=16)
    assert found.fitting[0].limits["launches"] > 0.01


def test_candidates_of_other_processes_have_the_same_numbers():
    """A candidate that was sent has the numbers that rank it, and computes the others again."""
    here = [each for each in judged_cases(complete=False) if not isinstance(each, str)]
    assert here
    there = pickle.loads(pickle.dumps(here))
    assert all("cost" in vars(each) and "cost" not in vars(sent) for each, sent in zip(here, there, strict=True))
    assert [vars(each) for each in there] == [
        {"case": each.case, "machine": H100S, "needed_bytes": each.needed_bytes, "step_seconds": each.step_seconds}
        for each in here
    ]
    assert [each.predictions for each in there] == [each.predictions for each in here]
    sent = pickle.loads(pickle.dumps(judged_cases(complete=True)))
    assert all({"formulas", "predictions"} <= {*vars(each)} for each in sent)


def judged_cases(*, complete):
    """Candidates of a small search, all of which fit."""
    return [judged(H100S, complete, case) for case in space(strategies=("fsdp",), remats=("full",)).cases()]
