"""What a compiler sends beyond the formulas is named by kind of collective and mesh axes, with its bytes."""

from collections.abc import Iterable
from typing import Any

import pytest

from benchmarks.program.collectives import Collective
from benchmarks.program.explanations import Rewrite, rewrites
from benchmarks.program.flops import unstated_flops
from strategies import GPTConfig, MeshSpec, TrainConfig
from strategies.costs.predict import Cost, predict

SMALL = GPTConfig(layers=2, embed=64, heads=4, vocab=384, sequence=16)


def cost(strategy: str, mesh: str, **train: Any) -> Cost:
    """The predictions for a small model."""
    return predict(strategy, SMALL, MeshSpec.parse(mesh), TrainConfig(16, **{"dtype": "bfloat16", **train}))


def stated(cost: Cost) -> list[Collective]:
    """The predicted collectives."""
    return [Collective(each.kind, each.axes, 1, False, each.sent_bytes) for each in cost.traffic]


def without(kind: str, collectives: Iterable[Collective]) -> list[Collective]:
    """All but those of a kind."""
    return [each for each in collectives if each.kind != kind]


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [("data", "data=8"), ("fsdp", "fsdp=8"), ("tensor", "tensor=4"), ("three_d", "fsdp=2,context=2,tensor=2")],
)
def test_a_program_as_predicted_has_no_rewrites(strategy: str, mesh: str) -> None:
    """A program that sends what is predicted has no rewrites."""
    predicted = cost(strategy, mesh)
    assert rewrites(predicted, stated(predicted)) == []


def test_each_kind_over_each_axis_is_compared() -> None:
    """More bytes of one kind do not cancel fewer of another; executions in a loop count. The largest come first."""
    predicted = cost("fsdp", "fsdp=8")
    gathered = sum(predicted.sent["all_gather", ("fsdp",)].values())
    more = Collective("all_reduce", ("fsdp",), 2, True, gathered)
    found = rewrites(predicted, [*without("all_gather", stated(predicted)), more])
    summed = sum(predicted.sent["all_reduce", ("fsdp",)].values())
    assert found == [
        Rewrite("all_reduce", ("fsdp",), summed, summed + 2 * gathered),
        Rewrite("all_gather", ("fsdp",), gathered, 0),
    ]
    assert [each.cost_bytes for each in found] == [2 * gathered, -gathered]
    assert str(found[1]).startswith("all_gather over fsdp: 0 B instead of ")


def test_flops_besides_those_stated() -> None:
    """FLOPs beyond the prediction are named: recomputed logits, a padded vocabulary, or unexplained."""
    predicted = cost("fsdp", "fsdp=8")
    flops, row = sum(predicted.flops.values()) // 8, 2 * 64 * (16 * 16 // 8)
    assert unstated_flops(predicted, flops) == {}
    assert unstated_flops(predicted, flops + 384 * row) == {"logits again": 384 * row}
    assert unstated_flops(predicted, flops + 399 * row) == {"logits again": 384 * row, "padding": 15 * row}
    assert unstated_flops(predicted, flops + 7) == {"unexplained": 7}
    assert unstated_flops(predicted, flops - row) == {"unexplained": -row}
