"""The predictions of the formulas in a row, beside the facts of its compiled program."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cases.case import Case
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import Program
from benchmarks.program.explanations import predicted_columns
from results.gates.counters import read_snapshot
from strategies import PRESETS, STRATEGIES, MeshSpec
from strategies.model.gpt import param_count
from tests.processes import ROOT

BASELINES = ROOT / "results" / "baselines"
"""Of CPUs, those that are named after a version of JAX alone."""

CASE = Case("data", MeshSpec.parse("data=8"), "nano", PRESETS["nano"], 16, 1, "float32", "dots")
SENT = 2 * 7 * (param_count(PRESETS["nano"]) + 1) * 4 // 8


def compiled(kind="all_reduce", axes=("data",), sent_bytes=SENT):
    """The facts of a program with one collective, as a row has them."""
    return Program((Collective(kind, axes, 1, False, sent_bytes),)).as_row()


def test_a_row_has_what_formulas_say_before_anything_is_compiled():
    """The predictions of a case need no compiled program; only the comparison is null without one."""
    row = predicted_columns(CASE, {})
    assert row["predicted.sent_bytes"] == SENT
    assert row["predicted.argument_bytes"] == 4 * (3 * param_count(PRESETS["nano"]) + 1 + 2 * 65)
    assert row["predicted.bubble"] == 0
    assert row["sent_over_predicted"] is row["sent_as_predicted"] is None


@pytest.mark.parametrize("changes", [{"batch_size": 12}, {"mesh": MeshSpec.parse("tensor=8")}], ids=str)
def test_what_no_formula_knows_is_null(changes):
    """A case without formulas has the same columns, all of them null."""
    row = predicted_columns(replace(CASE, **changes), compiled())
    assert set(row.values()) == {None}
    assert row.keys() == predicted_columns(CASE, {}).keys()


@pytest.mark.parametrize(
    ("found", "ratio", "equal"),
    [
        ({}, 1, True),
        ({"sent_bytes": 2 * SENT}, 2, False),
        # The same bytes in another kind, or over another axis.
        ({"kind": "reduce_scatter"}, 1, False),
        ({"axes": ("data", "tensor")}, 1, False),
    ],
    ids=str,
)
def test_what_is_sent_is_compared_by_kind_and_axis(found, ratio, equal):
    """The same bytes in another kind of collective, or over another axis, are not what was predicted."""
    row = predicted_columns(CASE, compiled(**found))
    assert (row["sent_over_predicted"], row["sent_as_predicted"]) == (ratio, equal)


def test_nothing_sent_is_as_predicted():
    """One device sends nothing, as predicted, and has no ratio."""
    row = predicted_columns(replace(CASE, strategy="single", mesh=MeshSpec.parse("data=1")), Program().as_row())
    assert (row["predicted.sent_bytes"], row["sent_over_predicted"], row["sent_as_predicted"]) == (0, None, True)


def test_a_twin_by_hand_is_what_a_compiler_is_compared_with():
    """A row of auto has the predictions of its hand-written twin and no verdict on whether it meets them.

    The twin's case is the one of those predictions: it exchanges tokens as `auto` does, where `expert` gathers them.
    """
    auto = replace(CASE, strategy="auto")
    row, by_hand = (predicted_columns(case, compiled(sent_bytes=2 * SENT)) for case in (auto, CASE))
    assert (row["sent_over_predicted"], row["sent_as_predicted"]) == (2, None)
    assert row == by_hand | {"sent_as_predicted": None}
    mixture = replace(auto, mesh=MeshSpec.parse("expert=2"), config=PRESETS["nano-moe"])
    exchanged = replace(mixture, strategy="expert", options=(("dispatch", "all_to_all"),))
    assert mixture.twin == exchanged
    assert predicted_columns(mixture, {}) == predicted_columns(exchanged, {})
    assert predicted_columns(mixture, {}) != predicted_columns(replace(exchanged, options=()), {})


@pytest.mark.parametrize("path", sorted(BASELINES.glob("jax-*[0-9].json")), ids=lambda path: path.stem)
def test_committed_baselines_are_what_formulas_say(path):
    """In the committed baselines bytes sent, FLOPs and arguments equal the predictions.

    Temporaries, which are not predicted on CPUs, are more than residuals. Programs that the compiler partitions are
    left out.
    """
    ended_well = {case: row for case, row in read_snapshot(path).rows.items() if row["status"] == "ok"}
    rows = {case: row for case, row in ended_well.items() if not STRATEGIES[case_of(case).strategy].twins}
    assert rows
    for case, row in rows.items():
        row |= predicted_columns(case_of(case), row)
        assert row["sent_as_predicted"], case
        assert row["predicted.flops"] == row["compiled.flops"], case
        assert row["predicted.argument_bytes"] == row["memory.argument_bytes"], case
        assert row["predicted.temp_bytes"] is None, case
        assert 0 < row["predicted.residual_bytes"] < row["memory.temp_bytes"], case


def case_of(case: Any) -> Case:
    """The case of a row in a baseline."""
    strategy, mesh, batch, *others = case.name.removeprefix("test_step[").removesuffix("]").split("-")
    sizes = case.preset, PRESETS[case.preset], int(batch.removeprefix("b"))
    options = tuple((name, value) for name, _, value in (each.partition("=") for each in others) if name != "experts")
    return Case(strategy, MeshSpec.parse(mesh), *sizes, case.microbatches, case.dtype, case.remat, options)
