"""`pytest benchmarks`: a test for each case of a run, which a separate process measures (`benchmarks/run`).

JAX is not imported here. Importing it takes most of the start-up time, and the process that reports outlives whatever
ends the process that measures.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.cli.options import add_options, measuring_options, several_processes_requested
from benchmarks.cli.starting import environment_problem, steps_problem
from benchmarks.cli.statuses import INTERRUPTED, REFUSED, UNWRITTEN
from benchmarks.run import publish
from benchmarks.run.journal import journal_path, require_journal
from benchmarks.run.supervise import Ended, Supervisor

HERE = Path(__file__).resolve().parent
STARTED = pytest.StashKey[bool]()
RUN = pytest.StashKey[Supervisor]()
OUTPUT = pytest.StashKey[publish.WhileRead]()
NOT_ALONE = f"the benchmarks run alone: pytest {HERE.name}; exclude them with --ignore={HERE}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options, unless the conftest.py of a checkout has done so."""
    add_options(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Reject what cannot work, and start the measuring process."""
    option = config.option
    config.stash[STARTED] = True
    if option.help or option.version:
        return None
    require_alone(config)
    if not option.collectonly:
        publish.require_effect(config.invocation_params.args)
        require_measurable(option)
    journal = option.benchmark_json and journal_path(option.benchmark_json)
    try:
        alone = not several_processes_requested(option)
        if problem := environment_problem() or steps_problem():
            raise ValueError(problem)
        # In a multi-process run only the first process has the journal, and checks for it later.
        if alone and option.resume:
            require_journal(journal)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    run = config.stash[RUN] = Supervisor(
        measuring_options(option), journal, alone=alone, timeout_seconds=option.case_timeout, listing=option.collectonly
    )
    config.add_cleanup(run.close)
    try:
        run.begin()
    except Ended as end:
        if end.status == REFUSED and end.reason:
            raise pytest.UsageError(end.reason) from end
        return end.status
    if run.first:
        sys.stdout = config.stash[OUTPUT] = publish.WhileRead(sys.stdout)
    else:
        publish.disable_output(config)
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Register what only a run of the benchmarks needs."""
    if STARTED in config.stash:
        publish.hide_timing_table(config)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Refuse to be collected among other tests, as by `pytest .`. An error in a folder would be one of many."""
    if STARTED not in collector.config.stash:
        raise pytest.UsageError(NOT_ALONE)


def pytest_collect_file(parent: pytest.Collector) -> None:
    """Refuse it in a worker of pytest-xdist, too. Only collection errors of workers are reported."""
    if STARTED not in parent.config.stash and hasattr(parent.config, "workerinput"):
        raise parent.CollectError(NOT_ALONE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for every case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.config.stash[RUN].cases, ids=str)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Measure the cases that are left after -k."""
    if run := session.config.stash.get(RUN, None):
        run.select([item.callspec.id for item in session.items if isinstance(item, pytest.Function)])
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.showfspath = False


@pytest.fixture
def run(pytestconfig: pytest.Config, benchmark: BenchmarkFixture) -> Supervisor:
    """The run, which all cases share."""
    publish.mark_used(benchmark)
    return pytestconfig.stash[RUN]


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count a test as pytest does, but print no dot: the measuring process prints a line."""
    return (report.outcome, "", report.outcome.upper()) if report.when == "call" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Publish the rows before pytest-benchmark writes its report. Remove the journal once that is written."""
    run = session.config.stash.get(RUN, None)
    if run is None or session.config.option.collectonly:
        return (yield)
    run.finish()
    rows = [*run.rows.values(), *run.interrupted]
    publish.publish(session.config, sorted(rows, key=lambda row: run.cases.index(row.case)))
    try:
        with publish.atomic_report(session.config):
            result = yield
    except (OSError, KeyboardInterrupt) as error:
        why, status = ("Ctrl-C", INTERRUPTED) if isinstance(error, KeyboardInterrupt) else (str(error), UNWRITTEN)
        advice = f"the rows in {run.journal} are not lost: continue with --resume"
        pytest.exit(f"the report was not written ({why}); {advice}", returncode=status)
    if session.exitstatus == pytest.ExitCode.OK and {row.extra_info["status"] for row in rows} == {"infeasible"}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # a run without any number is not a success
    run.remove_journal()
    output = session.config.stash.get(OUTPUT, None)
    if output and (unprinted := output.flush()):
        session.exitstatus = UNWRITTEN
        print(f"meshmark: the output could not be printed: {unprinted.strerror}", file=sys.stderr)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Print the summaries, the last of which may be of regressions."""
    with publish.ending_with_regressions(terminalreporter._session):
        return (yield)


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Move rows without samples to where programs that read pytest-benchmark's files do not look."""
    publish.move_untimed_rows(output_json)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Describe the machine in the report."""
    publish.describe_machine(machine_info, config.stash[RUN].machine)


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_compare_machine_info(
    benchmarksession: Any, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
) -> None:
    """Compare the machines of this run and of a stored one."""
    publish.note_machine(machine_info, compared_benchmark, benchmarksession.logger.info)


def require_measurable(option: Any) -> None:
    """Check what is needed to measure and to write a report."""
    if getattr(option, "numprocesses", None):
        raise pytest.UsageError("cases are timed one at a time, because they would slow each other down; remove -n")
    if hasattr(option.benchmark_json, "write"):
        raise pytest.UsageError("meshmark needs pytest-benchmark 5.3 or later: pip install --upgrade pytest-benchmark")
    publish.require_different(option)
    publish.require_writable(option.benchmark_json)
    publish.require_storage(option)
    publish.require_comparison(option)


def require_alone(config: pytest.Config) -> None:
    """Check that no other tests were requested, because they would be run like cases."""
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        if HERE not in (path.resolve(), *path.resolve().parents):
            raise pytest.UsageError(f"the benchmarks run alone: pytest {HERE.name}, without {argument}")
