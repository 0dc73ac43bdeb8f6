"""How `pytest benchmarks` runs: cases from the options, a line for each as it ends, a table and a report at the end."""

from typing import Any

import pytest

from benchmarks.cases import Case
from benchmarks.clock import Clock
from benchmarks.corpus import read_corpus
from benchmarks.machine import update_machine_info
from benchmarks.options import selection
from benchmarks.publish import quieten, require_writable
from benchmarks.reporter import Reporter
from benchmarks.session import Session

CASES = pytest.StashKey[list[Case]]()
SESSION = pytest.StashKey[Session]()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot work before anything is compiled."""
    clock = Clock()
    # Errors in the tests; to someone who measures, a warning of a newer library is no failure of the step.
    config.addinivalue_line("filterwarnings", "default")
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("cases are timed one at a time, or they would slow each other down; leave out -n")
    require_writable(config.option.benchmark_json)
    quieten(config)
    chosen = selection(config)
    try:
        corpus_N = read_corpus(config.option.corpus, chosen.config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[CASES] = chosen.cases()
    config.stash[SESSION] = Session(corpus_N, config.option.case_seconds, clock)
    config.pluginmanager.register(Reporter(config, config.stash[SESSION]), "meshmark-reporter")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.config.stash[CASES], ids=str)


@pytest.fixture
def session(pytestconfig: pytest.Config) -> Session:
    """What the cases of this run share."""
    return pytestconfig.stash[SESSION]


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Say in the report what it was measured on."""
    update_machine_info(machine_info, config.stash[SESSION].matmul_rates)
