"""Set up JAX for the tests: eight virtual CPU devices, and compilation without LLVM's optimisation.

Tests compile many small programs, and half of that time is LLVM's optimisation, on which no law depends. Nor does one
depend on how many parts LLVM compiles side by side: one part takes a tenth less time than 32, and the processes of the
tests leave no core idle. XLA's older loop emitters compile faster. Without the lines of Python in its metadata a
program is compiled in a tenth less time.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.extras import MISSING

# Failures of their assertions show their numbers.
pytest.register_assert_rewrite(
    "tests.commands", *(f"tests.strategies.{name}" for name in ("formulas", "jaxprs", "refusals"))
)


def set_up() -> None:
    """Set up JAX and hypothesis, before any other file of the tests is imported."""
    import jax
    from hypothesis import settings

    from benchmarks.run.machine import use_virtual_devices
    from tests.processes import quick_flags

    settings.register_profile("tests", deadline=None)  # an example takes as long as it takes on a busy machine
    settings.load_profile("tests")
    use_virtual_devices()
    jax.config.update("jax_platforms", "cpu")  # tests need eight devices, whatever accelerator is there
    jax.config.update("jax_traceback_in_locations_limit", 0)
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # of the processes that tests start
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick_flags()}".strip()
    gc.set_threshold(10_000)  # traces are many long-lived objects, which take long to scan
    gc.disable()  # until all tests are imported (see `pytest_collection_finish`)


if "pytest_benchmark.cli" not in sys.modules:  # `pytest-benchmark compare` loads this file, and may lack hypothesis
    set_up()

FIRST = (
    "benchmarks/test_interrupted_run.py",
    "benchmarks/test_run.py",
    "test_own_strategy.py",
    "benchmarks/run/test_engine.py",
    "benchmarks/cluster/test_process_runs.py",
    "benchmarks/training/test_train.py",
    "benchmarks/run/test_supervise.py",
)
"""Files that start first.

They take half a minute and more, much of it waiting for other processes. Where several tests of a file share a run, a
process of pytest-xdist that steals half of the file repeats the run; it steals what would start last.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip by name what cannot run here, and start long files first.

    Then no file is split, and no process of pytest-xdist ends with a long one while others idle.

    Raises:
        FileNotFoundError: one of them has another name now.
    """
    for item in items:
        for reason in (MISSING[mark.name] for mark in item.iter_markers() if MISSING.get(mark.name)):
            item.add_marker(pytest.mark.skip(reason=reason))
    here = Path(__file__).parent
    order = {(here / name).resolve(strict=True): place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    """Never scan for garbage what was imported and collected: it lives until the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Handle Ctrl-C even if the parent process ignores it, as a script's background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def valid_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a valid file of each kind, which tests read and leave as it is."""
    from tests.valid_files import write_valid_files

    folder = tmp_path_factory.mktemp("valid")
    write_valid_files(folder)
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Make stdout a terminal of a width in characters, or a pipe for None."""

    def terminal(width: int | None) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None)
        monkeypatch.setenv("COLUMNS", str(width or 40))

    return terminal
