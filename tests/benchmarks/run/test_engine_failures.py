"""Cases that fail become rows with a status and a reason, and the others are measured."""

import gc
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import strategies
from benchmarks.cases import case as cases
from benchmarks.cases.row import Row
from benchmarks.cluster.processes import FailedElsewhere
from benchmarks.run.journal import JournalError
from benchmarks.run.measure import time_interleaved, trace
from benchmarks.run.prepare import Preparation
from benchmarks.run.record import Record
from benchmarks.run.states import RunSettings
from strategies import STRATEGIES, Axis, MeshSpec, Strategy
from tests.benchmarks.faulty_strategies import TOYS
from tests.benchmarks.run.engines import DATA, PLAN, SINGLE, Begin, measure

pytestmark = pytest.mark.usefixtures("_short_blocks")


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("fault", "status", "reason", "compiled", "matches"),
    [
        ("uncompilable", "compile_error", "ValueError: no such instruction$", False, None),
        ("huge", "oom", "JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory$", False, None),
        ("broken", "error", "ZeroDivisionError: no weights$", True, None),
        ("nan", "nan_loss", "loss nan and gradient norm .* in the first steps$", True, None),
        ("wrong", "mismatch", "step 1: gradient norm .* where one device has .*; rounding explains", True, False),
        ("diverging", "nan_loss", "loss nan and gradient norm .* after the timed blocks$", True, True),
        ("retraced", "error", "compiled while it was timed: .*; a step must be compiled once$", True, True),
    ],
)
def test_failing_case_is_a_row_without_times(
    begin: Begin, fault: str, status: str, reason: str, compiled: bool, matches: bool | None
) -> None:
    """A failing case has its status, its reason, what was learnt before, and no time; other cases are unaffected."""
    engine, case = begin(), replace(SINGLE, strategy=fault)
    failed, good = measure(engine, case, SINGLE)
    assert failed["status"] == status
    assert re.match(reason, failed["reason"])
    assert (failed["compile_seconds"] is not None, failed["matches_single"]) == (compiled, matches)
    assert failed["step_seconds_median"] is None
    assert good["status"] == "ok"


@pytest.mark.parametrize("settings", [PLAN, replace(PLAN, compile_only=True)], ids=["timed", "compiled"])
def test_formulas_that_fail_are_a_row(begin: Begin, monkeypatch: pytest.MonkeyPatch, settings: RunSettings) -> None:
    """A strategy whose terms of traffic are broken has one row, with the error and without columns by formula."""
    axis = Axis("data", batch=True, traffic=(lambda plan: iter(["no term"]),))
    broken = {**STRATEGIES, "broken": Strategy("broken", (axis,))}
    for module in (strategies, cases):
        monkeypatch.setattr(module, "STRATEGIES", broken, raising=False)
    engine = begin(settings)
    (row,) = measure(engine, replace(DATA, strategy="broken"))
    assert row["status"] == "error"
    assert re.match("BrokenStrategy: the term .* yields something invalid .*'no term'; pass a Traffic", row["reason"])
    assert row["predicted.sent_bytes"] is None
    assert row["compile_seconds"] is not None


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("error", [OverflowError("no row"), SystemExit(3)], ids=repr)
def test_a_row_that_cannot_be_made_is_an_error(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """What a record has learnt and that cannot be a row ends its case with that error; others are measured."""
    as_row = Record.as_row

    def failing(record: Record) -> Row:
        if record.case == DATA and record.columns:
            raise error
        return as_row(record)

    monkeypatch.setattr(Record, "as_row", failing)
    failed, good = measure(begin(), DATA, SINGLE)
    assert (failed["status"], failed["reason"]) == ("error", f"{type(error).__name__}: {error}")
    assert good["status"] == "ok"


@pytest.mark.usefixtures("toys")
def test_a_failure_elsewhere_frees_the_state_here(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that ran out of memory in another process fails here, too, and its state here is freed."""

    def run_in_all(function: Callable[[], Any]) -> Any:
        value = function()
        if len(jax.live_arrays()) > before:  # the state has been made
            raise FailedElsewhere("oom", "process 1 of 2: no room")
        return value

    engine = begin()
    engine.prepare(SINGLE)
    gc.collect()  # frees arrays that earlier tests left in cycles
    before = len(jax.live_arrays())
    monkeypatch.setattr("benchmarks.cluster.processes.run_in_all", run_in_all)
    engine.prepare(DATA)
    assert len(jax.live_arrays()) == before
    row = engine.rows[str(DATA)].extra_info
    assert (row["status"], row["reason"]) == ("oom", "process 1 of 2: no room")


@pytest.mark.usefixtures("toys")
def test_timeout_of_other_processes_starts_when_this_one_is_ready(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes' timeout starts when this process has finished the function."""
    engine = begin()
    heard: list[float] = []
    monkeypatch.setattr(engine.states, "begin", lambda case: heard.append(time.monotonic()))

    def slow(record: Record) -> Record:
        time.sleep(0.2)
        return record

    def run_in_all(function: Callable[[], Any]) -> Any:
        value = function()
        assert time.monotonic() - heard[-1] < 0.1
        return value

    monkeypatch.setattr(Preparation, "functions", [slow])
    monkeypatch.setattr("benchmarks.cluster.processes.run_in_all", run_in_all)
    engine.references.abandon_reference(SINGLE, "it is not needed")
    engine.prepare(DATA)
    assert str(DATA) not in engine.rows


@pytest.mark.usefixtures("toys")
def test_infeasible_case_says_why(begin: Begin) -> None:
    """An infeasible case is a row with the numbers."""
    engine, case = begin(), replace(SINGLE, mesh=MeshSpec.parse("data=3"))
    (row,) = measure(engine, case)
    assert row["status"] == "infeasible"
    assert re.search(r"data=3 .*does not divide batch_size=4", row["reason"])


@pytest.mark.parametrize(("fault", "status"), [("huge", "oom"), ("nan", "nan_loss")])
def test_without_a_reference_nothing_is_said_of_equality(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, fault: str, status: str
) -> None:
    """If `single` fails, other cases are timed unchecked; their rows say why, and `single` is not tried again."""
    engine, other = begin(), replace(DATA, mesh=MeshSpec.parse("data=4"))
    monkeypatch.setattr(cases, "STRATEGIES", TOYS | {"single": TOYS[fault]})
    engine.prepare(DATA)
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)
    first, second = measure(engine, DATA, other)
    assert (first["status"], first["matches_single"], first["relative_to_single"]) == ("ok", None, None)
    assert first["canary_ratio"] is not None
    assert first["reason"].startswith(f"not checked, for single ended in {status}: ")
    assert second["reason"] == first["reason"]


@pytest.mark.usefixtures("toys")
def test_full_disk_ends_the_run_and_not_a_case(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that cannot be written ends the run, blames no case, and loses no sample."""
    engine = begin()

    def filling(*arguments: Any) -> None:
        time_interleaved(*arguments)
        unread, pipe = os.pipe()
        os.dup2(pipe, engine.states.journal._file.fileno())  # nobody reads it: each write fails, as on a full disk
        os.close(unread)
        os.close(pipe)
        engine.states.begin(SINGLE)

    monkeypatch.setattr("benchmarks.run.timing_group.time_interleaved", filling)
    with pytest.raises(JournalError, match=r"run\.journal\.jsonl cannot be written: Broken pipe"):
        measure(engine, SINGLE, DATA)
    assert [row.extra_info["status"] for row in engine.rows.values()] == ["ok", "ok"]
    assert engine.states.close() == []


@pytest.mark.usefixtures("toys")
def test_row_is_whole_without_attribution(begin: Begin) -> None:
    """A row whose time cannot be attributed, as a toy's without halves, is complete apart from that, with a warning."""
    with pytest.warns(UserWarning, match="data-data=2-b4: its time could not be attributed: "):
        (row,) = measure(begin(replace(PLAN, attribution=True)), DATA)
    assert (row["status"], row["attribution.compute_seconds"]) == ("ok", None)


@pytest.mark.usefixtures("toys")
def test_trace_that_cannot_be_written_is_said_and_the_row_is_whole(begin: Begin, tmp_path: Path) -> None:
    """A trace that cannot be written is a warning, and the row is ok."""
    (tmp_path / "traces").touch()
    with pytest.warns(UserWarning, match=f"{DATA}: no trace was written: "):
        (row,) = measure(begin(replace(PLAN, trace=tmp_path / "traces")), DATA)
    assert row["status"] == "ok"


def test_trace_that_cannot_be_written_elsewhere_is_not_taken_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one process cannot write its trace, none takes the traced steps, and the profiler stays free."""

    def run_in_all(function: Callable[[], Any]) -> None:
        function()
        raise FailedElsewhere("error", "process 1 of 2: no folder")

    monkeypatch.setattr("benchmarks.cluster.processes.run_in_all", run_in_all)
    taken: list[int] = []
    for _ in range(2):
        with pytest.raises(FailedElsewhere, match="process 1 of 2: no folder"):
            trace(tmp_path / "traces", lambda: taken.append(1) or 0.0)
    assert taken == []
