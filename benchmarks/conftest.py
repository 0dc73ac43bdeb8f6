"""Start of `pytest benchmarks`: rejects invalid usage and leaves the measuring to a child process (`measuring.py`).

JAX is not imported here. The supervisor does not need it, and importing it takes most of the start-up time.
"""

from pathlib import Path

import pytest

from benchmarks.cli.options import add_options
from benchmarks.cluster.joining import several_processes_requested
from benchmarks.commandline.environment import environment_problem
from benchmarks.commandline.importing import collection_paused
from benchmarks.run.journal import journal_path
from benchmarks.run.publish import (
    hide_timing_table,
    require_pytest_benchmark,
    require_storage,
    require_writable,
)
from benchmarks.run.supervise import supervise, supervised

HERE = Path(__file__).resolve().parent
STARTED = pytest.StashKey[bool]()
NOT_ALONE = f"the benchmarks run alone: pytest {HERE.name}; leave them out with --ignore={HERE}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options, unless the conftest.py of a checkout has done so."""
    add_options(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run in a supervised child process, so that a case that kills it does not end the sweep."""
    option = config.option
    config.stash[STARTED] = True
    if supervised() or option.help or option.version:
        return None
    require_alone(config)
    if option.collectonly:
        return None
    if getattr(option, "numprocesses", None):
        raise pytest.UsageError("cases are timed one at a time, because they would slow each other down; leave out -n")
    require_pytest_benchmark()
    report = option.benchmark_json
    try:
        alone = not several_processes_requested(option)
        if problem := environment_problem():
            raise ValueError(problem)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    require_writable(report)
    require_storage(option)
    # In a multi-process run only the first process has the journal, and checks for it later.
    if alone and option.resume and not (report and journal_path(report).exists()):
        raise pytest.UsageError("--resume continues a run that was stopped; give the --benchmark-json of that run")
    arguments, journal = config.invocation_params.args, report and journal_path(report)
    return supervise(arguments, journal, alone=alone, timeout_seconds=option.case_timeout)


def pytest_configure(config: pytest.Config) -> None:
    """Register the measuring plugin in the process that measures or lists cases. JAX is imported there."""
    if STARTED not in config.stash:
        return
    # Warnings are errors in the tests, but a newer library's warning must not fail a measurement.
    config.addinivalue_line("filterwarnings", "default")
    hide_timing_table(config)
    if not (supervised() or config.option.collectonly):
        return
    try:
        with collection_paused():
            from benchmarks.run import measuring
    except (ValueError, RuntimeError) as error:  # such as an invalid JAX setting, or a strategy that is no module
        what = "" if "MESHMARK_STRATEGIES" in str(error) else "JAX cannot be loaded: "
        raise pytest.UsageError(f"{what}{error}") from error
    config.pluginmanager.register(measuring, "meshmark-measuring")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Refuse to be collected among other tests, as by `pytest .`. An error while a folder is read would be one of many.

    Raises:
        pytest.UsageError: the benchmarks were not started on their own.
    """
    if STARTED not in collector.config.stash:
        raise pytest.UsageError(NOT_ALONE)


def pytest_collect_file(parent: pytest.Collector) -> None:
    """Refuse it in a worker of pytest-xdist too, as by `pytest . -n 2`. Only collection errors of workers are reported.

    Raises:
        pytest.Collector.CollectError: the benchmarks were not started on their own.
    """
    if STARTED not in parent.config.stash and hasattr(parent.config, "workerinput"):
        raise parent.CollectError(NOT_ALONE)


def require_alone(config: pytest.Config) -> None:
    """Check that no other tests were requested, because they would be run like cases.

    Raises:
        pytest.UsageError: names them.
    """
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        if HERE not in (path.resolve(), *path.resolve().parents):
            raise pytest.UsageError(f"the benchmarks run alone: pytest {HERE.name}, without {argument}")
