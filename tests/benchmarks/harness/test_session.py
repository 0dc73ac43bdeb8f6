"""A run in one process: what is measured, checked and remembered, and what becomes of the cases that fail."""

import gc
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.cluster.processes import FailedElsewhere
from benchmarks.explain.estimate import ROW_KEYS as ESTIMATE_KEYS
from benchmarks.failures import CaseFailure, status_of
from benchmarks.harness.clock import Clock
from benchmarks.harness.corpus import read_corpus
from benchmarks.harness.journal import Journal, JournalError
from benchmarks.harness.lifecycle import RunSettings
from benchmarks.harness.session import Session
from benchmarks.statuses import TIMEOUT_CAUSE
from benchmarks.timing.interleaved import MIN_ROUNDS, Interval, time_interleaved
from benchmarks.timing.measure import trace
from strategies import GPTConfig, Infeasible, MeshSpec
from tests.benchmarks.planted import TOYS, changed, plant, raiser

CONFIG = GPTConfig(layers=1, embed=16, heads=2, vocab=256, sequence=16)
SINGLE = Case("single", MeshSpec.parse("data=1"), "tiny", CONFIG, 4, 1, "float32", "none")
DATA = replace(SINGLE, strategy="data", mesh=MeshSpec.parse("data=2"))
TWIN = "relative_to_twin", "relative_to_twin_low", "relative_to_twin_high"
PLAN = RunSettings(read_corpus(None, CONFIG), rounds=MIN_ROUNDS)

Begin = Callable[..., Session]
Info = dict[str, Any]
pytestmark = pytest.mark.usefixtures("_short_blocks")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a session, or goes on with the one before it."""
    sessions: list[Session] = []

    def begin(settings: RunSettings = PLAN, resume: bool = False, after: str | None = None) -> Session:
        for earlier in sessions:
            end(earlier)
        session = Session(settings, Clock(), Journal(tmp_path / "run.journal.jsonl", {}, resume=resume, after=after))
        session.matmul_rates["float32"] = 1e11
        sessions.append(session)
        return session

    yield begin
    for session in sessions:
        end(session)


def end(session: Session) -> None:
    """End a session as a process does that dies: nothing more is written."""
    session._lifecycle.watchdog.stop()
    session.journal.close()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies that compile at once, some of them broken."""
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)


def measure(session: Session, *measured: Case) -> list[Info]:
    """The rows of cases, each prepared before the first is timed."""
    for case in measured:
        session.prepare(case)
    for case in measured:
        session.time(case)
    return [dict(session.rows[str(case)].extra_info) for case in measured]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Info]:
    """The rows of two real strategies, measured in one session."""
    journal = Journal(tmp_path_factory.mktemp("session") / "run.journal.jsonl", {}, resume=False)
    session = Session(replace(PLAN, attribution=True), Clock(), journal)
    try:
        return measure(session, SINGLE, DATA)
    finally:
        session.close()
        journal.close()


def test_good_row_is_whole(rows: list[dict[str, Any]]) -> None:
    """A row that is ok lacks nothing but what its backend does not tell, and a ratio where nothing is sent.

    Nor is what is written by hand compared with a twin, nor a device that is there with the figures of its kind.
    """
    for row in rows:
        assert row["status"] == "ok"
        missing = {
            "reason",
            "memory.device_peak_bytes",
            "topology",
            "overlap.exposed_seconds",
            *ESTIMATE_KEYS,
            *TWIN,
        } | ({"sent_over_predicted"} if not row["predicted.sent_bytes"] else set())
        assert {key for key, value in row.items() if value is None} == missing


def test_strategies_are_compared_with_single(rows: list[Info]) -> None:
    """Each row says that it computes what one device computes, and how its time compares, in an interval."""
    single, data = rows
    assert single["relative_to_single"] == single["relative_to_single_low"] == single["relative_to_single_high"] == 1
    assert data["relative_to_single_low"] <= data["relative_to_single"] <= data["relative_to_single_high"]
    assert single["matches_single"] is data["matches_single"] is True
    assert data["loss_last"] == pytest.approx(single["loss_last"], rel=1e-5)


def test_program_is_read(rows: list[Info]) -> None:
    """Each row says what its compiled program does: the two devices sum their gradients, each half of the FLOPs."""
    single, data = rows
    assert (single["compiled.sent_bytes"], single["compiled.compilations"]) == (0, 1)
    assert data["compiled.sent_bytes"] >= 4 * CONFIG.param_count
    assert data["compiled.flops"] == single["compiled.flops"] / 2


def test_canary_flies_with_each_group(rows: list[Info]) -> None:
    """All that took turns share one canary, which says how noisy it was."""
    single, data = rows
    assert single["canary_ratio"] == data["canary_ratio"] > 0
    within = single["canary_ratio_low"] >= 0.95 and single["canary_ratio_high"] <= 1.05
    assert single["noisy"] is not within


def test_steps_are_counted(rows: list[Info]) -> None:
    """A row says how many steps were timed, and how long it took to hand one over."""
    for row in rows:
        assert row["steps_timed"] >= MIN_ROUNDS
        assert 0 < row["dispatch_seconds_median"] <= row["step_seconds_median"]


def test_time_is_attributed(rows: list[Info]) -> None:
    """Where it was asked for, a row says where its time goes: to waiting and sending only if there are others."""
    single, data = rows
    between = "exposed_communication", "schedule_bubble", "lockstep_bubble"
    assert [single[f"attribution.{part}_seconds"] for part in between] == [0, 0, 0]
    assert data["attribution.exposed_communication_seconds"] != 0
    for row in rows:
        assert row["attribution.dispatch_seconds"] > 0
        assert row["attribution.total_over_step"] > 0


def test_text_is_learnt(rows: list[dict[str, Any]]) -> None:
    """The loss begins at a guess among 256 bytes, and falls."""
    for row in rows:
        assert row["loss_first"] == pytest.approx(math.log(256), abs=0.1)
        assert row["loss_last"] < row["loss_first"]


def test_state_counts_what_a_device_holds(rows: list[dict[str, Any]]) -> None:
    """Parameters are float32 and AdamW holds two moments of each and a step count, all among the arguments."""
    for row in rows:
        parameter_bytes = 4 * CONFIG.param_count
        assert row["memory.parameter_bytes"] == parameter_bytes
        assert row["memory.optimizer_bytes"] == 2 * parameter_bytes + 4
        assert row["memory.argument_bytes"] > 3 * parameter_bytes


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
    """Whatever goes wrong has its status and reason, keeps what was learnt before, and publishes no time.

    The case that took turns with it is none the worse.
    """
    session, case = begin(), replace(SINGLE, strategy=fault)
    failed, good = measure(session, case, SINGLE)
    assert failed["status"] == status
    assert re.match(reason, failed["reason"])
    assert (failed["compile_seconds"] is not None, failed["matches_single"]) == (compiled, matches)
    assert failed["step_seconds_median"] is None
    assert good["status"] == "ok"
    with pytest.raises(Exception, match=r".") as raised:
        session.require_good(case)
    assert status_of(raised.value) == status


def test_a_reason_that_is_too_long_is_whole_beside_the_report(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row has its beginning and names the file; nothing is written where no report is."""
    long = plant("long", lambda step: changed(step, raiser(ValueError("x" * 3_000_000))))
    monkeypatch.setattr(cases, "STRATEGIES", TOYS | {"long": long})
    case, kept = replace(SINGLE, strategy="long"), tmp_path / "run.long-data=1-b4.txt"
    (row,) = measure(begin(), case)
    assert row["reason"].endswith("x... (3,000,012 characters)")
    assert not kept.exists()
    (row,) = measure(begin(replace(PLAN, report=tmp_path / "run.json")), case)
    assert row["reason"].endswith(f"x... (3,000,012 characters; all of them are in {kept})")
    assert len(kept.read_text()) == 3_000_012


@pytest.mark.usefixtures("toys")
def test_step_that_does_not_mean_to_be_exact_is_timed_and_says_so(begin: Begin) -> None:
    """It is not held against one device: its row neither passes the check nor fails it, and has the reason."""
    _, row = measure(begin(), SINGLE, replace(SINGLE, strategy="inexact"))
    assert (row["status"], row["matches_single"]) == ("ok", None)
    assert row["reason"] == "not exact by design: gradients of another size"
    assert row["step_seconds_median"] > 0


def test_what_the_compiler_partitions_is_compared_with_its_twin(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """From blocks of the same rounds, in an interval; where the twin was not timed, nothing is said."""
    auto = replace(TOYS["data"], name="auto", twins={("data",): "data"})
    monkeypatch.setattr(cases, "STRATEGIES", {**TOYS, "auto": auto})
    case = replace(DATA, strategy="auto")
    session = begin()
    *by_hand, row = measure(session, SINGLE, DATA, case)
    ratio = Interval.of_ratios(*(list(session.rows[str(each)].samples) for each in (case, DATA)))
    assert ratio
    assert tuple(row[key] for key in TWIN) == (ratio.median, ratio.low, ratio.high)
    assert all(other[key] is None for other in by_hand for key in TWIN)
    alone = replace(case, batch_size=2)
    _, row = measure(session, alone.single, alone)
    assert row["relative_to_single"] > 0
    assert {row[key] for key in TWIN} == {None}


@pytest.mark.usefixtures("toys")
def test_case_that_failed_elsewhere_has_failed_here_and_gives_its_memory_back(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another process had no room for its state, this one keeps none of its own, though it keeps the error."""

    def run_in_all(function: Callable[[], Any]) -> Any:
        if (value := function()) == {}:  # the state has been made
            raise FailedElsewhere("oom", "process 1 of 2: no room")
        return value

    session = begin()
    session.prepare(SINGLE)
    before = len(jax.live_arrays())
    monkeypatch.setattr("benchmarks.cluster.processes.run_in_all", run_in_all)
    session.prepare(DATA)
    assert len(jax.live_arrays()) == before
    row = session.rows[str(DATA)].extra_info
    assert (row["status"], row["reason"]) == ("oom", "process 1 of 2: no room")
    with pytest.raises(FailedElsewhere):
        session.require_good(DATA)


@pytest.mark.usefixtures("toys")
def test_other_processes_have_their_time_when_this_one_is_ready(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that took long here does not have the watchdog end this process while it waits for them."""
    session = begin()
    heard: list[float] = []
    monkeypatch.setattr(session._lifecycle.watchdog, "beat", lambda case: heard.append(time.monotonic()))

    def stages(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        time.sleep(0.2)
        yield {}

    def run_in_all(function: Callable[[], Any]) -> Any:
        value = function()
        assert time.monotonic() - heard[-1] < 0.1
        return value

    monkeypatch.setattr(session._preparation, "stages", stages)
    monkeypatch.setattr("benchmarks.cluster.processes.run_in_all", run_in_all)
    session._preparation.abandon_reference(SINGLE, "it is not needed")
    session.prepare(DATA)
    assert str(DATA) not in session.rows


@pytest.mark.usefixtures("toys")
def test_infeasible_case_says_why(begin: Begin) -> None:
    """What cannot be is a row with the numbers, and no failure but one that has that name."""
    session, case = begin(), replace(SINGLE, mesh=MeshSpec.parse("data=3"))
    (row,) = measure(session, case)
    assert row["status"] == "infeasible"
    with pytest.raises(Infeasible, match=r"data=3 .*does not divide batch_size=4"):
        session.require_good(case)


@pytest.mark.usefixtures("toys")
def test_single_is_timed_when_it_was_not_selected(begin: Begin) -> None:
    """A strategy alone is checked against one device, and compared with it, which has no row of its own."""
    session = begin()
    (row,) = measure(session, DATA)
    assert row["matches_single"] is True
    assert row["relative_to_single"] > 0
    assert list(session.rows) == ["data-data=2-b4"]


@pytest.mark.parametrize(("fault", "status"), [("huge", "oom"), ("nan", "nan_loss")])
def test_without_a_reference_nothing_is_said_of_equality(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, fault: str, status: str
) -> None:
    """Where one device fails, and once is enough, cases are timed all the same; their rows say why unchecked."""
    session, other = begin(), replace(DATA, mesh=MeshSpec.parse("data=4"))
    monkeypatch.setattr(cases, "STRATEGIES", TOYS | {"single": TOYS[fault]})
    session.prepare(DATA)
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)
    first, second = measure(session, DATA, other)
    assert (first["status"], first["matches_single"], first["relative_to_single"]) == ("ok", None, None)
    assert first["canary_ratio"] is not None
    assert first["reason"].startswith(f"not checked, for single ended in {status}: ")
    assert second["reason"] == first["reason"]


@pytest.mark.usefixtures("toys")
def test_compile_only_runs_nothing(begin: Begin) -> None:
    """The row of a case that was only compiled has its memory, and neither losses nor times."""
    (row,) = measure(begin(replace(PLAN, compile_only=True)), DATA)
    assert (row["kind"], row["status"]) == ("compiled", "ok")
    assert row["memory.argument_bytes"] > 0
    assert row["loss_first"] is row["step_seconds_median"] is row["matches_single"] is None


@pytest.mark.usefixtures("toys", "_interruptible")
def test_interrupt_keeps_what_was_measured(begin: Begin) -> None:
    """Ctrl-C while a case is compiled: the one before it is in the journal, this one is a row that says so."""
    session, stopped = begin(), replace(SINGLE, strategy="stopped", batch_size=8)
    measure(session, SINGLE)
    with pytest.raises(KeyboardInterrupt):
        session.prepare(stopped)
    assert [row.extra_info["status"] for row in session.close()] == ["ok", "interrupted"]
    resumed = begin(resume=True)
    assert list(resumed.rows) == [str(SINGLE)]
    assert not resumed.journal.deaths


@pytest.mark.usefixtures("toys")
def test_row_of_an_earlier_process_is_not_measured_again(begin: Begin) -> None:
    """It ends its test as it did then."""
    wrong = replace(SINGLE, strategy="wrong")
    session = begin()
    first = measure(session, SINGLE, wrong)
    session.close()
    resumed = begin(resume=True)
    assert measure(resumed, SINGLE, wrong) == first
    assert resumed.prepared == 0
    resumed.require_good(SINGLE)
    with pytest.raises(CaseFailure, match="mismatch: step 1: gradient norm"):
        resumed.require_good(wrong)


@pytest.mark.usefixtures("toys")
def test_case_that_killed_two_processes_is_given_up(begin: Begin) -> None:
    """It becomes a row with the reason; one death may have been an accident, and the case is tried again."""
    for deaths, status in ((1, "ok"), (2, "error")):
        session = begin()
        for _ in range(deaths):
            session.journal.begin(str(DATA))
            session = begin(resume=True, after="SIGABRT")
        (row,) = measure(session, DATA)
        assert row["status"] == status
        session.close()
    assert row["reason"] == "2 processes died while it ran, the last of SIGABRT"


@pytest.mark.usefixtures("toys")
def test_reference_that_killed_two_processes_is_done_without(begin: Begin) -> None:
    """The cases that it was to be compared with are none the worse but for that."""
    session = begin()
    for _ in range(2):
        session.journal.begin(str(SINGLE))
        session = begin(resume=True)
    (row,) = measure(session, DATA)
    assert (row["status"], row["matches_single"], row["relative_to_single"]) == ("ok", None, None)
    assert row["reason"].startswith("not checked, for single was given up: 2 processes died while it ran")


@pytest.mark.usefixtures("toys")
def test_infeasible_row_of_an_earlier_process_is_infeasible_again(begin: Begin) -> None:
    """What was skipped is skipped, not failed, by a run that goes on."""
    case = replace(SINGLE, mesh=MeshSpec.parse("data=3"))
    session = begin()
    measure(session, case)
    session.close()
    with pytest.raises(Infeasible, match="data=3"):
        begin(resume=True).require_good(case)


@pytest.mark.usefixtures("toys")
def test_timing_one_prepares_all_of_its_group(begin: Begin) -> None:
    """Whoever asks for one case alone has it timed in turns with the others that were selected."""
    session = begin()
    session.cases = [SINGLE, DATA, replace(SINGLE, batch_size=8)]
    session.time(DATA)
    assert set(session.rows) == {str(SINGLE), str(DATA)}


@pytest.mark.usefixtures("toys")
def test_interrupt_in_the_turns_keeps_what_had_turns_enough(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the end of the turns loses no sample."""

    def interrupted(*arguments: Any) -> None:
        time_interleaved(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.harness.timing_group.time_interleaved", interrupted)
    session = begin()
    with pytest.raises(KeyboardInterrupt):
        measure(session, SINGLE, DATA)
    assert [row.extra_info["status"] for row in session.close()] == ["ok", "ok"]


@pytest.mark.usefixtures("toys")
def test_full_disk_ends_the_run_and_not_a_case(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the case whose turn it was, and no sample is lost."""
    session = begin()

    def filling(*arguments: Any) -> None:
        time_interleaved(*arguments)
        unread, pipe = os.pipe()
        os.dup2(pipe, session.journal._file.fileno())  # nobody reads it: each write fails, as on a full disk
        os.close(unread)
        os.close(pipe)
        session.journal.begin(str(SINGLE))

    monkeypatch.setattr("benchmarks.harness.timing_group.time_interleaved", filling)
    with pytest.raises(JournalError, match=r"run\.journal\.jsonl cannot be written: Broken pipe"):
        measure(session, SINGLE, DATA)
    assert [row.extra_info["status"] for row in session.close()] == ["ok", "ok"]


@pytest.mark.usefixtures("toys")
def test_group_that_memory_does_not_hold_is_timed_in_heats(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each heat has its own `single` and canary to be compared with."""
    monkeypatch.setattr("benchmarks.harness.session.states_budget_bytes", lambda: 1)
    said = []
    session = begin()
    session.say = said.append
    first, second = measure(session, DATA, replace(DATA, mesh=MeshSpec.parse("data=4")))
    assert said == ["timing 1 comparable steps, interleaved"] * 2
    assert first["canary_ratio"] != second["canary_ratio"]
    assert None not in (first["relative_to_single"], second["relative_to_single"])


@pytest.mark.usefixtures("toys")
def test_trace_is_taken(begin: Begin, tmp_path: Path) -> None:
    """A folder for each case holds what the profiler saw of one more block."""
    measure(begin(replace(PLAN, trace=tmp_path / "traces")), DATA)
    assert list((tmp_path / "traces" / str(DATA)).rglob("*.xplane.pb"))


@pytest.mark.usefixtures("toys")
def test_row_is_whole_without_attribution(begin: Begin) -> None:
    """A step whose time cannot be attributed keeps what was measured: a toy has no halves to time."""
    with pytest.warns(UserWarning, match="data-data=2-b4: its time could not be attributed: "):
        (row,) = measure(begin(replace(PLAN, attribution=True)), DATA)
    assert (row["status"], row["attribution.compute_seconds"]) == ("ok", None)


@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_session_that_is_over_ends_no_process(begin: Begin, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Closed or dropped in the middle of a case, it lets its watchdog go, with its thread: what runs later is none of
    its business.
    """
    ends: list[int] = []
    monkeypatch.setattr("os._exit", ends.append)
    before = set(threading.enumerate())
    journal = begin().journal
    session = Session(replace(PLAN, case_timeout=0.1), Clock(), journal)
    (watching,) = [thread for thread in threading.enumerate() if thread not in before][1:]
    session._lifecycle.begin(str(DATA))
    if way == "closed":
        session.close()
    del session
    gc.collect()
    watching.join(60)
    assert not watching.is_alive()
    assert ends == []


@pytest.mark.usefixtures("toys")
def test_attribution_that_fails_leaves_no_watchdog_behind(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case whose row is whole is not waited for any more."""
    session = begin(replace(PLAN, attribution=True))
    with pytest.warns(UserWarning, match="its time could not be attributed: "):
        measure(session, DATA)
    assert session._lifecycle.watchdog._last_beat is None


@pytest.mark.usefixtures("toys")
def test_case_that_hung_is_not_tried_again(begin: Begin) -> None:
    """Where its process was ended from outside, once is enough; a reference that did is done without."""
    for hung in (DATA, SINGLE):
        session = begin()
        session.journal.begin(str(hung))
        session = begin(resume=True, after=TIMEOUT_CAUSE)
        (row,) = measure(session, DATA)
        assert row["status"] == ("timeout" if hung == DATA else "ok")
        assert "it made no progress for 600 seconds; --case-timeout sets how long to wait" in row["reason"]
        session.close()


@pytest.mark.usefixtures("toys")
def test_trace_that_cannot_be_written_is_said_and_the_row_is_whole(begin: Begin, tmp_path: Path) -> None:
    """A file is in the place of its folder."""
    (tmp_path / "traces").touch()
    with pytest.warns(UserWarning, match=f"{DATA}: no trace was written: "):
        (row,) = measure(begin(replace(PLAN, trace=tmp_path / "traces")), DATA)
    assert row["status"] == "ok"


def test_trace_that_cannot_be_written_elsewhere_is_not_taken_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process takes a step that another does not come to, and the profiler is there for the next case."""

    def run_in_all(function: Callable[[], Any]) -> None:
        function()
        raise FailedElsewhere("error", "process 1 of 2: no folder")

    monkeypatch.setattr("benchmarks.cluster.processes.run_in_all", run_in_all)
    taken: list[int] = []
    for _ in range(2):
        with pytest.raises(FailedElsewhere, match="process 1 of 2: no folder"):
            trace(tmp_path / "traces", lambda: taken.append(1) or 0.0)
    assert taken == []
