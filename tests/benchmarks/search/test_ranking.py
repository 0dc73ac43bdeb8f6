"""Candidates have memory and a roofline by formulas, and are ranked by the least time that they allow."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cases.case import Case
from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import Topology
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.ranking import Candidate, best_per_layout, evaluated, memory_traffic_bytes, ranked
from strategies import GPTConfig, Infeasible, MeshSpec
from strategies.costs.predict import Cost, predict
from strategies.model.block import Block
from strategies.model.gpt import param_count

CONFIG = GPTConfig(layers=4, embed=64, heads=4, vocab=256, sequence=16)
CHIP = CHIPS["v5e"]


def case(strategy: str, mesh: str, **others: Any) -> Case:
    """A case of a tiny model on virtual devices."""
    spec = MeshSpec.parse(mesh)
    usual = Case(strategy, spec, "tiny", CONFIG, 16, 1, "bfloat16", "dots", topology=Topology("cpu", (spec.size,)))
    return replace(usual, **others)


def all_ranked(memory_bytes: int) -> list[Candidate]:
    """All candidates on eight devices of that memory, ranked."""
    space = SearchSpace(Topology.parse("cpu:8"), "tiny", CONFIG, 16, "bfloat16", remats=("dots", "full"))
    return ranked(space.cases(), replace(CHIP, memory_bytes=memory_bytes))


def test_candidates_that_fit_come_first() -> None:
    """Candidates that fit come first, by time; then those that do not, by memory; infeasible ones last."""
    needs = sorted(each.estimate.needed_bytes for each in all_ranked(2**40) if each.estimate)
    candidates = all_ranked(needs[len(needs) // 2])
    kinds = [0 if each.fits else 1 if each.estimate else 2 for each in candidates]
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1, 2}
    bounds = [each.estimate for each in candidates if each.estimate]
    times = [bound.roofline.step_seconds for bound in bounds if bound.fits and bound.roofline]
    assert times == sorted(times)
    assert len(set(times)) > 10
    assert all(bound.fits == (bound.needed_bytes <= bound.capacity_bytes) for bound in bounds)
    too_large = [bound.needed_bytes for bound in bounds if not bound.fits]
    assert too_large == sorted(too_large)


def test_formulas_are_those_of_predict() -> None:
    """A candidate's cost, memory and reason are those of `predict`."""
    outcomes = []
    for each in all_ranked(2**40):
        cost = predicted(each.case)
        outcomes.append(isinstance(cost, Cost))
        if isinstance(cost, Infeasible):
            assert (str(each.cost), each.estimate) == (str(cost), None)
        else:
            assert each.cost == cost
            assert each.estimate
            assert each.estimate.needed_bytes == sum(cost.arguments.values()) + sum(cost.temporaries.values())
    assert 5 < sum(outcomes) < len(outcomes) - 5


def predicted(case: Case) -> Cost | Infeasible:
    """The prediction for a case, or the error it raises."""
    try:
        return predict(case.strategy, case.config, case.mesh, case.training(), case.platform)
    except Infeasible as error:
        return error


def test_a_bubble_lengthens_the_compute_time() -> None:
    """The pipeline bubble lengthens the compute time; the FLOPs stay."""
    each = evaluated(case("pipeline", "pipeline=4", microbatches=4), CHIP)
    assert isinstance(each.cost, Cost)
    assert each.estimate
    assert each.estimate.roofline
    assert each.cost.bubble == pytest.approx(3 / 7)
    busy = each.estimate.roofline.compute_seconds * (1 - 3 / 7) * CHIP.flops_per_second
    assert busy == pytest.approx(sum(each.cost.flops.values()) / 4)


def test_virtual_devices_have_one_link() -> None:
    """Virtual devices count as a line of chips, so an all-reduce has one link."""
    each = evaluated(case("data", "data=8"), CHIP)
    assert isinstance(each.cost, Cost)
    assert each.estimate
    assert each.estimate.roofline
    expected = each.cost.sent_bytes / CHIP.link_bytes_per_second
    assert each.estimate.roofline.network_seconds == pytest.approx(expected)


@pytest.mark.parametrize(("remat", "passes"), [("dots", 2), ("full", 3)])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_memory_is_read_and_written_once_for_each_use(remat: str, passes: int, microbatches: int) -> None:
    """The traffic of data parallelism is the sum by hand: all weights are read at each use, positions looked up."""
    each = evaluated(case("data", "data=8", remat=remat, microbatches=microbatches), CHIP)
    assert isinstance(each.cost, Cost)
    weights, table = param_count(CONFIG), CONFIG.sequence * CONFIG.embed
    in_each = passes * 2 * (weights - table) + 8 * weights + 2 * CONFIG.layers * Block.kept_bytes(each.cost.plan.share)
    assert memory_traffic_bytes(each.cost.plan) == microbatches * in_each + 24 * weights


def test_fsdp_computes_with_whole_weights() -> None:
    """fsdp reads whole weights to compute with, and its optimizer touches its own shard only."""
    whole, part = (evaluated(case(name, f"{name}=8"), CHIP).cost for name in ("data", "fsdp"))
    assert isinstance(whole, Cost)
    assert isinstance(part, Cost)
    assert memory_traffic_bytes(whole.plan) - memory_traffic_bytes(part.plan) == (8 + 24) * param_count(CONFIG) * 7 // 8


def test_the_foremost_are_the_best_of_each_kind() -> None:
    """The foremost candidates are the best of each strategy and set of mesh axes, in order."""
    candidates = all_ranked(2**40)
    kinds = [(each.case.strategy, *each.case.mesh.sizes) for each in candidates if each.estimate]
    found = best_per_layout(candidates)
    assert [(each.case.strategy, *each.case.mesh.sizes) for each in found] == list(dict.fromkeys(kinds))
    assert all(each.order == min(o.order for o in candidates if o.estimate and same(o, each)) for each in found)


def same(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates have the same strategy and mesh axes."""
    kinds = [(each.case.strategy, *each.case.mesh.sizes) for each in (one, other)]
    return kinds[0] == kinds[1]
