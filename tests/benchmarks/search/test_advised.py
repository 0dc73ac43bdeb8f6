"""The advice: what fits, ranked by predicted seconds, and what the step of the best waits for."""

import math
from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.search.advised import Choices, advised, limits
from benchmarks.search.candidates import MEMORY_FRACTION, SearchSpace
from benchmarks.seconds.machines import machine
from benchmarks.seconds.predicted import predict_seconds
from strategies import PRESETS, MeshSpec
from strategies.config import GPTConfig

TOPOLOGY = Topology.parse("h100:2x8")
H100S = machine("meshmark_gpus", "h100")
SMALL = GPTConfig(layers=8, embed=128, heads=8, sequence=128)
"""Its kernels are shorter than their launches."""


def space(preset="gpt2-xl", topology=TOPOLOGY, batch_size=64, config=None, **restricted):
    """A search space."""
    return SearchSpace(topology, preset, config or PRESETS[preset], batch_size, "bfloat16", **restricted)


def choices(its=H100S, topology=TOPOLOGY, **asked):
    """The ranked candidates of a search space."""
    return advised(space(topology=topology, **asked).cases(), its, topology)


@pytest.fixture(scope="module")
def ranked():
    """All candidates of gpt2-xl on 16 H100s."""
    return choices(remats=("dots",))


def test_candidates_are_ranked_by_predicted_seconds(ranked):
    """The first is the fastest; each has the seconds that `predict_seconds` gives for its cost."""
    seconds = [each.step_seconds for each in ranked.best]
    assert seconds == sorted(seconds)
    assert len({each.case.strategy for each in ranked.best}) > 5
    for each in ranked.best[::50]:
        assert each.step_seconds == predict_seconds(each.cost, H100S, TOPOLOGY).step_seconds
        assert each.tokens_per_second == pytest.approx(64 * 1024 / each.step_seconds)


def test_every_candidate_is_counted_once(ranked):
    """Those that fit, those that are too large and those that are infeasible are the search space."""
    assert len(ranked.best) + ranked.too_large + ranked.infeasible == len([*space(remats=("dots",)).cases()])


def test_what_does_not_fit_is_not_ranked(ranked):
    """With less memory, candidates that need more are counted as too large, and no other is lost."""
    limit = sorted(each.needed_bytes for each in ranked.best)[len(ranked.best) // 2]
    memory_bytes = math.ceil((limit + 1) / MEMORY_FRACTION)
    small = replace(H100S, chip=replace(H100S.chip, memory_bytes=memory_bytes))
    fewer = choices(small, remats=("dots",))
    assert [each.case for each in fewer.best] == [each.case for each in ranked.best if each.needed_bytes <= limit]
    assert fewer.too_large - ranked.too_large == len(ranked.best) - len(fewer.best) > 0


def test_candidates_within_the_error_are_tied(ranked):
    """A faster best by more than both errors is alone; without an error only equal predictions are tied."""
    first, last = ranked.best[0].step_seconds, ranked.best[-1].step_seconds
    assert ranked.tied(0.0) == sum(each.step_seconds == first for each in ranked.best)
    error = (last - first) / (last + first)  # the last may take as long as the first
    assert ranked.tied(error + 1e-9) == len(ranked.best) > ranked.tied(error - 1e-3)
    assert Choices((), (), ()).tied(0.5) == 0


def test_each_layout_has_its_fastest(ranked):
    """One choice for each strategy and set of mesh axes, and none of the same layout is faster."""
    layouts = [(each.case.strategy, *each.case.mesh.sizes) for each in ranked.best]
    shown = ranked.of_each_layout()
    assert len(shown) == len({*layouts})
    assert shown == [each for each, layout in zip(ranked.best, layouts, strict=True) if _is_first(each, layout, ranked)]


def _is_first(choice, layout, ranked):
    same = (each for each in ranked.best if (each.case.strategy, *each.case.mesh.sizes) == layout)
    return next(same) is choice


@pytest.mark.parametrize("name", ["flops", "hbm", "hbm_bandwidth", "link_bandwidth", "inter_host_bandwidth"])
@pytest.mark.parametrize("topology", ["h100:2x8", "h100:1x8", "v5e:4x4"], ids=str)
def test_twice_of_anything_makes_the_best_no_slower(name, topology):
    """The best of a search with more of a resource takes at most as long as the best without."""
    devices = Topology.parse(topology)
    its = machine("meshmark_gpus" if devices.platform == "cuda" else "meshmark_tpus", devices.kind)
    asked = {"topology": devices, "preset": "gpt2", "remats": ("dots",), "strategies": ("hsdp", "tensor", "pipeline")}
    before, after = (choices(each, **asked) for each in (its, its.with_changes({name: "2x"})))
    assert before.best
    assert after.best[0].step_seconds <= before.best[0].step_seconds


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
    best = choices(slow, preset="gpt3-1.3b", strategies=(strategy,), meshes=(spec,), microbatches=(1,)).best[0]
    found = limits(best, slow, TOPOLOGY)
    assert next(iter(found)) == name
    assert found[name] > 0.5
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert all(-1e-9 <= share <= 1 for share in found.values())


def test_a_pipeline_with_few_microbatches_waits_for_its_bubble():
    """GPipe with eight stages and as many microbatches idles for nearly half of its step."""
    eight = Topology.parse("h100:1x8")
    options = (("schedule", ("gpipe",)),)
    found = choices(topology=eight, strategies=("pipeline",), microbatches=(8,), options=options, remats=("dots",))
    assert limits(found.best[0], H100S, eight)["pipeline bubble"] == pytest.approx(7 / 15, abs=0.05)


def test_a_small_model_waits_for_launches():
    """Kernels that are shorter than their launches leave the device idle."""
    found = choices(preset="small", config=SMALL, strategies=("data",), microbatches=(1,), batch_size=16)
    assert limits(found.best[0], H100S, TOPOLOGY)["launches"] > 0.01
