"""A run that is interrupted or dies, and the one that resumes it from the journal."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cli.statuses import TIMEOUT_CAUSE
from benchmarks.run.measure import time_interleaved
from tests.benchmarks.run.engines import DATA, SINGLE, Begin, measure

pytestmark = pytest.mark.usefixtures("_short_blocks")


@pytest.mark.usefixtures("toys", "_interruptible")
def test_interrupt_keeps_what_was_measured(begin: Begin) -> None:
    """Ctrl-C while a case compiles keeps earlier rows in the journal, and gives this case an `interrupted` row."""
    engine, stopped = begin(), replace(SINGLE, strategy="stopped", batch_size=8)
    measure(engine, SINGLE)
    with pytest.raises(KeyboardInterrupt):
        engine.prepare(stopped)
    assert [row.extra_info["status"] for row in engine.states.close()] == ["interrupted"]
    resumed = begin(resume=True)
    assert list(resumed.rows) == [str(SINGLE)]
    assert not resumed.states.journal.deaths


@pytest.mark.usefixtures("toys")
def test_row_of_an_earlier_process_is_not_measured_again(begin: Begin) -> None:
    """A resumed run keeps earlier rows, and measures nothing again."""
    wrong = replace(SINGLE, strategy="wrong")
    engine = begin()
    first = measure(engine, SINGLE, wrong)
    engine.states.close()
    resumed = begin(resume=True)
    assert measure(resumed, SINGLE, wrong) == first
    assert not resumed.states.records


@pytest.mark.usefixtures("toys")
def test_case_that_killed_two_processes_is_given_up(begin: Begin) -> None:
    """A case is tried again after one death of its process, and becomes an error row after two."""
    for deaths, status in ((1, "ok"), (2, "error")):
        engine = begin()
        for _ in range(deaths):
            engine.states.begin(DATA)
            engine = begin(resume=True, after="SIGABRT")
        (row,) = measure(engine, DATA)
        assert row["status"] == status
        engine.states.close()
    assert row["reason"] == "2 processes died while it ran, the last of SIGABRT"


@pytest.mark.usefixtures("toys")
def test_cases_are_timed_without_a_reference_that_killed_two_processes(begin: Begin) -> None:
    """If `single` killed two processes, the other cases are timed without a check and a relative time, and say so."""
    engine = begin()
    for _ in range(2):
        engine.states.begin(SINGLE)
        engine = begin(resume=True)
    (row,) = measure(engine, DATA)
    assert (row["status"], row["matches_single"], row["relative_to_single"]) == ("ok", None, None)
    assert row["reason"].startswith("not checked, for single was given up: 2 processes died while it ran")


@pytest.mark.usefixtures("toys")
def test_interrupt_in_the_timing_keeps_its_samples(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the end of the interleaved timing keeps the samples of all cases."""

    def interrupted(*arguments: Any) -> None:
        time_interleaved(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.run.timing_group.time_interleaved", interrupted)
    engine = begin()
    with pytest.raises(KeyboardInterrupt):
        measure(engine, SINGLE, DATA)
    assert [row.extra_info["status"] for row in engine.rows.values()] == ["ok", "ok"]


@pytest.mark.usefixtures("toys")
def test_case_that_hung_is_not_tried_again(begin: Begin) -> None:
    """A case that timed out is not tried again; if it is `single`, the others are timed unchecked."""
    for hung in (DATA, SINGLE):
        engine = begin()
        engine.states.begin(hung)
        engine = begin(resume=True, after=TIMEOUT_CAUSE)
        (row,) = measure(engine, DATA)
        assert row["status"] == ("timeout" if hung == DATA else "ok")
        assert "it made no progress for 600 seconds; --case-timeout sets how long to wait" in row["reason"]
        engine.states.close()
