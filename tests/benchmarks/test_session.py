"""A run in one process: what is measured, checked and remembered, and what becomes of the cases that fail."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.clock import Clock
from benchmarks.corpus import read_corpus
from benchmarks.session import Session
from strategies import GPTConfig, MeshSpec
from tests.benchmarks.planted import TOYS

CONFIG = GPTConfig(layers=1, embed=16, heads=2, vocab=256, sequence=16)
SINGLE = Case("single", MeshSpec.parse("data=1"), "tiny", CONFIG, 4, 1, "float32", "none")
DATA = replace(SINGLE, strategy="data", mesh=MeshSpec.parse("data=2"))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session on toys, some of them broken."""
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)
    session = Session(read_corpus(None, CONFIG), case_seconds=0.01, clock=Clock())
    session.matmul_rates["float32"] = 1e11
    return session


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The rows of two real strategies, measured in one session."""
    session = Session(read_corpus(None, CONFIG), case_seconds=0.01, clock=Clock())
    return [session.measure(case).record.as_extra_info() for case in (SINGLE, DATA)]


def test_good_row_is_whole(rows: list[dict[str, Any]]) -> None:
    """A row that is ok lacks nothing but what its backend does not tell."""
    for row in rows:
        assert row["status"] == "ok"
        assert {key for key, value in row.items() if value is None} == {"reason", "memory.device_peak_bytes"}


def test_strategies_are_compared_with_single(rows: list[dict[str, Any]]) -> None:
    """Each row says that it computes what one device computes, and how its time compares."""
    single, data = rows
    assert single["relative_to_single"] == 1.0
    assert data["relative_to_single"] == data["step_seconds_median"] / single["step_seconds_median"]
    assert single["matches_single"] is data["matches_single"] is True
    assert data["loss_last"] == pytest.approx(single["loss_last"], rel=1e-5)


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


@pytest.mark.parametrize(
    ("fault", "status", "reason", "compiled", "matches"),
    [
        ("uncompilable", "compile_error", "ValueError: no such instruction$", False, None),
        ("huge", "oom", "JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory$", False, None),
        ("stopped", "interrupted", "stopped from the keyboard$", False, None),
        ("broken", "error", "ZeroDivisionError: no weights$", True, None),
        ("nan", "nan_loss", "loss nan and gradient norm .* in the first steps$", True, None),
        ("wrong", "mismatch", "step 1: gradient norm .* where one device has .*; rounding explains", True, False),
        ("diverging", "nan_loss", "loss nan and gradient norm .* after the timed blocks$", True, True),
        ("retraced", "error", "compiled while it was timed: .*; a step must be compiled once$", True, True),
    ],
)
def test_failing_case_is_a_row_without_times(
    session: Session, fault: str, status: str, reason: str, compiled: bool, matches: bool | None
) -> None:
    """Whatever goes wrong has its status and reason, keeps what was learnt before, and publishes no time."""
    measurement = session.measure(replace(SINGLE, strategy=fault))
    record = measurement.record
    assert record.status == status
    assert re.match(reason, str(record.reason))
    assert (record.compile_seconds is not None, record.matches_single) == (compiled, matches)
    assert record.step_seconds_median is None
    assert measurement.error is not None
    with pytest.raises(type(measurement.error)):
        measurement.raise_error()


def test_infeasible_case_is_skipped(session: Session) -> None:
    """What cannot be is no failure: the test is skipped for the reason in the row."""
    measurement = session.measure(replace(SINGLE, mesh=MeshSpec.parse("data=3")))
    assert measurement.record.status == "infeasible"
    with pytest.raises(pytest.skip.Exception, match=r"infeasible: data=3 .*does not divide batch_size=4"):
        measurement.raise_error()


def test_reference_is_measured_when_it_was_not_selected(session: Session) -> None:
    """A strategy alone is checked against one device too, but is compared in time only with what was timed."""
    record = session.measure(DATA).record
    assert record.matches_single is True
    assert record.relative_to_single is None
    assert [str(record.case) for record in session.records] == ["data-data=2-b4"]


@pytest.mark.parametrize(("fault", "status"), [("huge", "oom"), ("nan", "nan_loss")])
def test_without_a_reference_nothing_is_said_of_equality(
    session: Session, monkeypatch: pytest.MonkeyPatch, fault: str, status: str
) -> None:
    """Where one device fails, and once is enough, a case is timed all the same; its row says why it is not checked."""
    monkeypatch.setattr(cases, "STRATEGIES", TOYS | {"single": TOYS[fault]})
    first = session.measure(DATA).record
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)
    second = session.measure(DATA).record
    assert (first.status, first.matches_single) == ("ok", None)
    assert first.reason is not None
    assert first.reason.startswith(f"not checked, for single ended in {status}: ")
    assert second.reason == first.reason
