"""What the engine measures: the rows of good cases, and how cases are grouped for timing."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import case as cases
from benchmarks.cases.columns import COLUMNS
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.run.engine import Engine, in_order
from benchmarks.run.journal import Journal
from benchmarks.run.measure import Interval
from strategies import MeshSpec
from strategies.model.gpt import param_count
from tests.benchmarks.faulty_strategies import TOYS
from tests.benchmarks.run.engines import CONFIG, DATA, PLAN, SINGLE, TWIN, Begin, Info, listen, measure

pytestmark = pytest.mark.usefixtures("_short_blocks")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Info]:
    """The rows of single and data, two real strategies, measured in one run."""
    folder = tmp_path_factory.mktemp("session")
    journal = Journal(folder / "run.journal.jsonl", {}, resume=False)
    folders = {"memory_profile": folder / "memory"}
    engine = Engine(replace(PLAN, attribution=True, **folders), journal)
    try:
        return measure(engine, SINGLE, DATA)
    finally:
        journal.close()


def test_good_row_is_whole(rows: list[dict[str, Any]]) -> None:
    """A row that is ok has every value, except those of other backends, topologies, strategies, attention and experts.

    The ratio of sent to predicted bytes is null where nothing is sent, twins exist for auto only, and estimates for
    devices with a chip's figures only.
    """
    for row in rows:
        assert row["status"] == "ok"
        missing = {
            "reason",
            "compiled.unread",
            "memory.device_peak_bytes",
            "topology",
            "attention_window",
            "attention_stride",
            "attention_pattern",
            "attention_summary",
            "routing",
            *(name for name in COLUMNS if name.startswith("experts.")),
            *(name for name, column in COLUMNS.items() if column.source == "chip"),
            *TWIN,
            "predicted.temp_bytes",
            "predicted.step_seconds",
            "predicted.ratio",
            "prefetch",
            "halves",
            "context_attention",
            "check.float32",
        } | ({"sent_over_predicted", "reduce"} if row["strategy"] == "single" else set())
        assert {key for key, value in row.items() if value is None} == missing


def test_strategies_are_compared_with_single(rows: list[Info]) -> None:
    """A row matches `single`, and has its relative time with an interval; that of `single` is exactly one."""
    single, data = rows
    assert single["relative_to_single"] == single["relative_to_single_low"] == single["relative_to_single_high"] == 1
    assert data["relative_to_single_low"] <= data["relative_to_single"] <= data["relative_to_single_high"]
    assert single["matches_single"] is data["matches_single"] is True
    assert data["loss_last"] == pytest.approx(single["loss_last"], rel=1e-5)


def test_program_is_read(rows: list[Info]) -> None:
    """Rows have their programs' facts: two devices all-reduce the gradients, and each does half of the FLOPs."""
    single, data = rows
    assert (single["compiled.sent_bytes"], single["compiled.compilations"]) == (0, 1)
    assert data["compiled.sent_bytes"] >= 4 * param_count(CONFIG)
    assert data["compiled.flops"] == single["compiled.flops"] / 2


def test_cases_timed_together_share_a_canary(rows: list[Info]) -> None:
    """Cases that are timed together share a canary, a step's ratio to itself, which says whether they are noisy."""
    single, data = rows
    assert single["canary_ratio"] == data["canary_ratio"] > 0
    within = single["canary_ratio_low"] >= 0.95 and single["canary_ratio_high"] <= 1.05
    assert single["noisy"] is not within


def test_steps_are_counted(rows: list[Info]) -> None:
    """A row has the number of timed steps, and a dispatch time no longer than the step."""
    for row in rows:
        assert row["steps_timed"] >= MIN_ROUNDS
        assert 0 < row["dispatch_seconds_median"] <= row["step_seconds_median"]


def test_time_is_attributed(rows: list[Info]) -> None:
    """With attribution a row says where its time goes; one device has no communication and no bubbles."""
    single, data = rows
    between = "exposed_communication", "schedule_bubble", "lockstep_bubble"
    assert [single[f"attribution.{part}_seconds"] for part in between] == [0, 0, 0]
    assert data["attribution.exposed_communication_seconds"] != 0
    for row in rows:
        assert row["attribution.dispatch_seconds"] > 0
        assert row["attribution.total_over_step"] > 0


def test_memory_is_profiled(rows: list[Info]) -> None:
    """With a memory profile a row has the live bytes: those of the formulas, and a few of the loss.

    Parameters are float32, and AdamW holds two moments of each and a step count, all among the arguments.
    """
    for row in rows:
        assert row["memory.parameter_bytes"] == 4 * param_count(CONFIG)
        assert row["memory.optimizer_bytes"] == 2 * row["memory.parameter_bytes"] + 4
        live = {holder: row[f"memory.live_{holder}_bytes"] for holder in ("parameter", "optimizer", "batch")}
        assert live["parameter"] == row["memory.parameter_bytes"]
        assert live["optimizer"] == row["memory.optimizer_bytes"]
        assert sum(live.values()) == row["memory.argument_bytes"] == row["predicted.argument_bytes"]


def test_text_is_learnt(rows: list[dict[str, Any]]) -> None:
    """The loss begins at log(256), a uniform guess among bytes, and falls."""
    for row in rows:
        assert row["loss_first"] == pytest.approx(math.log(256), abs=0.1)
        assert row["loss_last"] < row["loss_first"]


@pytest.mark.usefixtures("toys")
def test_inexact_step_is_timed_and_not_checked(begin: Begin) -> None:
    """A step that is inexact by design is timed, is not checked against `single`, and has the reason in its row."""
    _, row = measure(begin(), SINGLE, replace(SINGLE, strategy="inexact"))
    assert (row["status"], row["matches_single"]) == ("ok", None)
    assert row["reason"] == "not exact by design: gradients of another size"
    assert row["step_seconds_median"] > 0


def test_auto_is_compared_with_its_twin(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of auto has its time relative to its twin, with an interval; without a timed twin it is null.

    Its twin is the same step by hand, even if an option of it is given that has its default value.
    """
    auto = replace(TOYS["data"], name="auto", twins={("data",): "data"})
    single = replace(TOYS["single"], axes=())  # without the option
    monkeypatch.setattr(cases, "STRATEGIES", {**TOYS, "single": single, "auto": auto})
    case, twin = replace(DATA, strategy="auto"), replace(DATA, options=(("reduce_dtype", "float32"),))
    engine = begin()
    *by_hand, row = measure(engine, SINGLE, twin, case)
    ratio = Interval.of_ratios(*(list(engine.rows[str(each)].samples) for each in (case, twin)))
    assert ratio
    assert tuple(row[key] for key in TWIN) == (ratio.median, ratio.low, ratio.high)
    assert all(other[key] is None for other in by_hand for key in TWIN)
    alone = replace(case, batch_size=2)
    _, row = measure(engine, alone.single, alone)
    assert row["relative_to_single"] > 0
    assert {row[key] for key in TWIN} == {None}


@pytest.mark.usefixtures("toys")
def test_single_is_timed_when_it_was_not_selected(begin: Begin) -> None:
    """A strategy that runs alone is checked against and compared with `single`, which gets no row."""
    engine = begin()
    (row,) = measure(engine, DATA)
    assert row["matches_single"] is True
    assert row["relative_to_single"] > 0
    assert list(engine.rows) == ["data-data=2-b4"]


@pytest.mark.usefixtures("toys")
def test_compile_only_runs_nothing(begin: Begin) -> None:
    """With compile_only a row has its memory, and neither losses nor times."""
    (row,) = measure(begin(replace(PLAN, compile_only=True)), DATA)
    assert (row["kind"], row["status"]) == ("compiled", "ok")
    assert row["memory.argument_bytes"] > 0
    assert row["loss_first"] is row["step_seconds_median"] is row["matches_single"] is None


@pytest.mark.usefixtures("toys")
def test_comparable_cases_are_measured_together(begin: Begin) -> None:
    """Cases of the same work are timed together, whatever the order in which they are given."""
    said, larger, engine = list[str](), replace(SINGLE, batch_size=8), begin()
    listen(engine, said)
    measure(engine, SINGLE, larger, DATA)
    assert list(engine.rows) == [str(SINGLE), str(DATA), str(larger)]
    assert said == [f"timing {count} comparable steps, interleaved" for count in (2, 1)]
    assert in_order([SINGLE, larger, DATA]) == [SINGLE, DATA, larger]


@pytest.mark.usefixtures("toys")
def test_a_step_that_fits_once_is_timed_without_a_canary(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a second state of the baseline would not fit, nothing is said of the noise, and the step is timed."""
    monkeypatch.setattr("benchmarks.run.timing_group.states_budget_bytes", lambda: 1)
    said, engine = list[str](), begin()
    listen(engine, said)
    (row,) = measure(engine, DATA)
    assert "no memory is left for a second state" in said[0]
    assert (row["status"], row["canary_ratio"], row["noisy"]) == ("ok", None, None)
    assert row["relative_to_single"] is not None


@pytest.mark.usefixtures("toys")
def test_group_that_memory_does_not_hold_is_timed_in_heats(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that exceeds the memory budget is timed in heats, each with its own `single` and canary."""
    monkeypatch.setattr("benchmarks.run.engine.states_budget_bytes", lambda: 1)
    said = []
    engine = begin()
    listen(engine, said)
    first, second = measure(engine, DATA, replace(DATA, mesh=MeshSpec.parse("data=4")))
    assert said == ["timing 1 comparable steps, interleaved"] * 2
    assert first["canary_ratio"] != second["canary_ratio"]
    assert None not in (first["relative_to_single"], second["relative_to_single"])


@pytest.mark.usefixtures("toys")
def test_trace_is_taken(begin: Begin, tmp_path: Path) -> None:
    """With a trace folder, each case leaves a profile of one more block there."""
    measure(begin(replace(PLAN, trace=tmp_path / "traces")), DATA)
    assert list((tmp_path / "traces" / str(DATA)).rglob("*.xplane.pb"))


@pytest.mark.usefixtures("toys")
def test_the_journal_has_the_rows(begin: Begin, tmp_path: Path) -> None:
    """In the order in which cases end, and a failed case has the same columns."""
    engine, failing = begin(), replace(SINGLE, strategy="nan")
    engine.run([SINGLE, failing])
    rows = engine.rows.values()
    assert [(row.case, row.extra_info["status"]) for row in rows] == [(str(failing), "nan_loss"), (str(SINGLE), "ok")]
    lines = (tmp_path / "run.journal.jsonl").read_text().splitlines()
    written = [entry["row"] for line in lines if "row" in (entry := json.loads(line))]
    assert [row["extra_info"] for row in written] == [row.extra_info for row in rows]
    assert len({frozenset(row.extra_info) for row in rows}) == 1


def test_a_mixture_of_experts_is_measured(begin: Begin) -> None:
    """Its gradients of the first step are compared as well, because later ones depend on choices of experts."""
    mixture = replace(CONFIG, experts=2, experts_per_token=1)
    single = replace(SINGLE, config=mixture)
    rows = measure(begin(), single, replace(single, strategy="expert", mesh=MeshSpec.parse("expert=2")))
    assert [(row["status"], row["matches_single"]) for row in rows] == [("ok", True)] * 2
