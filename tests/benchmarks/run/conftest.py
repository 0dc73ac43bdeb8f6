"""Fixtures for tests of the engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cases import case as cases
from benchmarks.run.engine import Engine
from benchmarks.run.journal import Journal
from benchmarks.run.states import RunSettings
from tests.benchmarks.faulty_strategies import TOYS
from tests.benchmarks.run.engines import PLAN, Begin


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begin a run, or resume the one before it as if its process had died."""
    journals: list[Journal] = []

    def begin(settings: RunSettings = PLAN, resume: bool = False, after: str | None = None) -> Engine:
        for earlier in journals:
            earlier.close()
        journals.append(Journal(tmp_path / "run.journal.jsonl", {}, resume=resume, after=after))
        engine = Engine(settings, journals[-1])
        engine.matmul_rates["float32"] = 1e11
        return engine

    yield begin
    for journal in journals:
        journal.close()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all strategies by toys, which compile fast; some have a fault."""
    monkeypatch.setattr(cases, "STRATEGIES", TOYS)
