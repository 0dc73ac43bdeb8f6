"""How `pytest benchmarks` starts: what cannot work is refused, and a process of its own measures (`measuring.py`).

JAX is not loaded here: a supervisor has no use for it, and it takes most of the start.
"""

import os
from pathlib import Path

import pytest

from benchmarks.arguments import add_options
from benchmarks.cluster.joining import processes_asked
from benchmarks.harness.journal import journal_path
from benchmarks.harness.supervise import supervise, supervised
from benchmarks.reporting.publish import quieten, require_storage, require_writable

HERE = Path(__file__).resolve().parent
STARTED = pytest.StashKey[bool]()
FOUND = f"the benchmarks run alone: pytest {HERE.name}; leave them out with --ignore={HERE}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the options where no checkout's conftest.py has declared them."""
    add_options(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Leave the run to a process of its own, so that a case that kills it does not end the sweep."""
    option = config.option
    config.stash[STARTED] = True
    if supervised() or option.help or option.version:
        return None
    require_alone(config)
    if option.collectonly:
        return None
    if getattr(option, "numprocesses", None):
        raise pytest.UsageError("cases are timed one at a time, or they would slow each other down; leave out -n")
    report = option.benchmark_json
    try:
        alone = not processes_asked(option)
        require_whole_devices()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    require_writable(report)
    require_storage(option)
    if alone and option.resume and not (report and journal_path(report).exists()):  # of several the first has it
        raise pytest.UsageError("--resume goes on with a run that was stopped; name its --benchmark-json")
    arguments, journal = config.invocation_params.args, report and journal_path(report)
    return supervise(arguments, journal, alone=alone, timeout_seconds=option.case_timeout)


def pytest_configure(config: pytest.Config) -> None:
    """Have the process that measures do so: there, and to list the cases, JAX is loaded."""
    if STARTED not in config.stash:
        return
    # Errors in the tests; to someone who measures, a warning of a newer library is no failure of the step.
    config.addinivalue_line("filterwarnings", "default")
    quieten(config)
    if not (supervised() or config.option.collectonly):
        return
    try:
        from benchmarks.reporting import measuring
    except (ValueError, RuntimeError) as error:  # a setting in the environment that JAX cannot read
        raise pytest.UsageError(f"JAX cannot be loaded: {error}") from error
    config.pluginmanager.register(measuring, "meshmark-measuring")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Refuse to be found among other tests, as by `pytest .`; an error while a folder is read would be one of many.

    Raises:
        pytest.UsageError: so it is.
    """
    if STARTED not in collector.config.stash:
        raise pytest.UsageError(FOUND)


def pytest_collect_file(parent: pytest.Collector) -> None:
    """Refuse it in a worker of pytest-xdist too, as by `pytest . -n 2`: of a worker's errors only these are reported.

    Raises:
        pytest.Collector.CollectError: so it is.
    """
    if STARTED not in parent.config.stash and hasattr(parent.config, "workerinput"):
        raise parent.CollectError(FOUND)


def require_alone(config: pytest.Config) -> None:
    """See that nothing else was asked for: it would be run as if it were a case.

    Raises:
        pytest.UsageError: names it.
    """
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        if HERE not in (path.resolve(), *path.resolve().parents):
            raise pytest.UsageError(f"the benchmarks run alone: pytest {HERE.name}, without {argument}")


def require_whole_devices() -> None:
    """See that the environment says a number of virtual devices, if any.

    Raises:
        ValueError: it says something else.
    """
    told = os.environ.get("JAX_NUM_CPU_DEVICES")
    if told is not None and not (told.isdecimal() and int(told) > 0):
        raise ValueError(f"JAX_NUM_CPU_DEVICES={told} is not a count; give a whole number of at least 1, or unset it")
