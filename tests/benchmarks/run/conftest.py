"""Fixtures for tests of a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cases import case as cases
from benchmarks.run.clock import Clock
from benchmarks.run.journal import Journal
from benchmarks.run.lifecycle import RunSettings
from benchmarks.run.session import Session
from tests.benchmarks.planted import TOYS
from tests.benchmarks.run.sessions import PLAN, Begin


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begin a session, or resume the one before it as if its process had died."""
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
    """End a session as the death of its process would: nothing more is written."""
    session._lifecycle.watchdog.stop()
    session.journal.close()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all strategies by toys, which compile fast; some have a fault."""
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)
