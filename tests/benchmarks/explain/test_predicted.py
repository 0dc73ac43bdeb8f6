"""What formulas say stands in every row, beside what the compiler said."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cases import Case
from benchmarks.explain.predicted import predicted_columns
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import Program
from results.baseline import BASELINES
from results.gates.counters import read_snapshot
from strategies import PRESETS, STRATEGIES, MeshSpec

CASE = Case("data", MeshSpec.parse("data=8"), "nano", PRESETS["nano"], 16, 1, "float32", "dots")
SENT = 2 * 7 * (PRESETS["nano"].param_count + 1) * 4 // 8


def compiled(kind="all_reduce", axes=("data",), sent_bytes=SENT):
    """A program of one collective, as a row has it."""
    return Program((Collective(kind, axes, 1, False, sent_bytes),)).as_row()


def test_a_row_has_what_formulas_say_before_anything_is_compiled():
    """Of a case that is not compiled, or cannot be, it is known what it would send and hold."""
    row = predicted_columns(CASE, {})
    assert row["predicted.sent_bytes"] == SENT
    assert row["predicted.argument_bytes"] == 4 * (3 * PRESETS["nano"].param_count + 1 + 2 * 65)
    assert row["predicted.bubble"] == 0
    assert row["sent_over_predicted"] is row["sent_as_predicted"] is None


@pytest.mark.parametrize(
    "changes",
    [{"strategy": "no such strategy"}, {"batch_size": 12}, {"mesh": MeshSpec.parse("tensor=8")}],
    ids=str,
)
def test_what_no_formula_knows_is_null(changes):
    """The row has the same columns all the same, and nothing is made up."""
    row = predicted_columns(replace(CASE, **changes), compiled())
    assert set(row.values()) == {None}
    assert row.keys() == predicted_columns(CASE, {}).keys()


@pytest.mark.parametrize(
    ("found", "ratio", "equal"),
    [
        ({}, 1, True),
        ({"sent_bytes": 2 * SENT}, 2, False),
        # As many bytes, of which none are those that were predicted.
        ({"kind": "reduce_scatter"}, 1, False),
        ({"axes": ("data", "tensor")}, 1, False),
    ],
    ids=str,
)
def test_what_is_sent_is_compared_by_kind_and_axis(found, ratio, equal):
    """A program that sends the same bytes otherwise does not send what was predicted."""
    row = predicted_columns(CASE, compiled(**found))
    assert (row["sent_over_predicted"], row["sent_as_predicted"]) == (ratio, equal)


def test_nothing_sent_is_as_predicted():
    """One device has no ratio, and sends what it should: nothing."""
    row = predicted_columns(replace(CASE, strategy="single", mesh=MeshSpec.parse("data=1")), Program().as_row())
    assert (row["predicted.sent_bytes"], row["sent_over_predicted"], row["sent_as_predicted"]) == (0, None, True)


def test_a_twin_by_hand_is_what_a_compiler_is_compared_with():
    """A row of what the compiler partitions has its twin's predictions, and nothing says that it should meet them."""
    auto = replace(CASE, strategy="auto")
    row, by_hand = (predicted_columns(case, compiled(sent_bytes=2 * SENT)) for case in (auto, CASE))
    assert (row["sent_over_predicted"], row["sent_as_predicted"]) == (2, None)
    assert row == by_hand | {"sent_as_predicted": None}


@pytest.mark.parametrize("path", sorted(BASELINES.glob("*.json")), ids=lambda path: path.stem)
def test_committed_baselines_are_what_formulas_say(path):
    """Of every program of the default matrix: bytes sent, FLOPs and arguments are equal, temporaries within 15%.

    But for those that are the compiler's own.
    """
    ended_well = {case: row for case, row in read_snapshot(path).rows.items() if row["status"] == "ok"}
    rows = {case: row for case, row in ended_well.items() if not STRATEGIES[spread(case).strategy].twins}
    assert rows
    for case, row in rows.items():
        row |= predicted_columns(spread(case), row)
        assert row["sent_as_predicted"], case
        assert row["predicted.flops"] == row["compiled.flops"], case
        assert row["predicted.argument_bytes"] == row["memory.argument_bytes"], case
        assert row["predicted.temp_bytes"] == pytest.approx(row["memory.temp_bytes"], rel=0.15), case


def spread(case: Any) -> Case:
    """The case of a record, which knows its name and its preset."""
    strategy, mesh, batch = case.name.removeprefix("test_step[").removesuffix("]").split("-")
    sizes = case.preset, PRESETS[case.preset], int(batch.removeprefix("b"))
    return Case(strategy, MeshSpec.parse(mesh), *sizes, case.microbatches, case.dtype, case.remat)
