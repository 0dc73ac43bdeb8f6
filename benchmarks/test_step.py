"""What a training step costs: `pytest benchmarks --benchmark-json=results/runs/NAME.json`."""

from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.cases import Case
from benchmarks.publish import publish
from benchmarks.session import Session


def test_step(case: Case, session: Session, benchmark: BenchmarkFixture) -> None:
    """A case is measured as far as it goes, leaves its row, and passes if its step is right."""
    measurement = session.measure(case)
    publish(benchmark, measurement.record)
    measurement.raise_error()
