"""Benchmark of training steps: `pytest benchmarks --benchmark-json=results/runs/NAME.json`."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.cases.case import Case
from benchmarks.run.publish import mark_used
from benchmarks.run.session import Session
from strategies import Infeasible


def test_equals_one_device(case: Case, session: Session) -> None:
    """The step compiles and computes what one device computes."""
    session.prepare(case)
    require_good(session, case)


def test_step(case: Case, session: Session, benchmark: BenchmarkFixture) -> None:
    """The step is timed, interleaved with all comparable ones, and leaves a row."""
    mark_used(benchmark)
    if session.failed(case):
        pytest.skip("not timed, because it failed before")
    session.prepare(case)
    if not session.settings.compile_only:
        session.time(case)  # does nothing for a case that has already ended
    require_good(session, case)


def require_good(session: Session, case: Case) -> None:
    """End the test the way its case ended. Infeasible cases are skipped."""
    try:
        session.require_good(case)
    except Infeasible as error:
        pytest.skip(f"infeasible: {error}")
