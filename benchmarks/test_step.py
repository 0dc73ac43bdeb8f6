"""What a training step costs: `pytest benchmarks --benchmark-json=results/runs/NAME.json`."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.cases import Case
from benchmarks.harness.session import Session
from benchmarks.reporting.publish import use
from strategies import Infeasible


def test_equals_one_device(case: Case, session: Session) -> None:
    """The step is compiled, and computes what one device computes."""
    session.prepare(case)
    require_good(session, case)


def test_step(case: Case, session: Session, benchmark: BenchmarkFixture) -> None:
    """The step is timed in turns with the others that do the same work, and leaves its row."""
    use(benchmark)
    if session.failed(case):
        pytest.skip("not timed, for it failed before")
    session.prepare(case)
    if not session.plan.compile_only:
        session.time(case)  # one that has ended already is not timed
    require_good(session, case)


def require_good(session: Session, case: Case) -> None:
    """End a test as its case ended: one that cannot be spread so is left out."""
    try:
        session.require_good(case)
    except Infeasible as error:
        pytest.skip(f"infeasible: {error}")
