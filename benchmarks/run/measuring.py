"""The pytest plugin of the measuring process, registered by conftest.py.

It creates the cases from the options, reports each case as it ends, and writes a table and a report at the end.
"""

import argparse
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.cases.case import Case, Selection
from benchmarks.cases.row import Row
from benchmarks.cases.selection import selected
from benchmarks.cli.options import EXTRA_SECONDS, ROUNDS
from benchmarks.cluster import processes
from benchmarks.cluster.heartbeat import HeartbeatSender
from benchmarks.commandline.ending import INTERRUPTED
from benchmarks.commandline.outputs import require_folder
from benchmarks.commandline.statuses import NORMAL_EXITS, PEER_LOST, UNWRITTEN
from benchmarks.explain.local_devices import predicting_machine
from benchmarks.run.clock import Clock
from benchmarks.run.corpus import EMPTY_CORPUS, Corpus, read_corpus
from benchmarks.run.journal import Journal, MirroredJournal, journal_path
from benchmarks.run.lifecycle import RunSettings
from benchmarks.run.machine import (
    compiler_facts,
    disable_compilation_cache,
    glibc_tunables,
    update_machine_info,
    use_virtual_devices,
)
from benchmarks.run.measure import forget_effects
from benchmarks.run.publish import IncrementalReport, atomic_report, disable_output, move_untimed_rows, publish
from benchmarks.run.record import SCHEMA_VERSION
from benchmarks.run.reporter import Reporter
from benchmarks.run.session import Session
from benchmarks.run.stopping import StopSignals
from benchmarks.run.supervise import JOURNAL, RESUMED, supervised

CASES = pytest.StashKey[list[Case]]()
HEART = pytest.StashKey[HeartbeatSender]()
SESSION = pytest.StashKey[Session]()
STOPS = StopSignals()


def pytest_configure(config: pytest.Config) -> None:
    """Parse the options, join the other processes and start the run.

    Raises:
        pytest.UsageError: something cannot work; it is rejected before anything is compiled.
    """
    option, clock = config.option, Clock()
    use_virtual_devices()
    try:
        option.compile_only |= option.topology is not None
        if supervised():
            processes.join(option)
        selection, corpus_N = processes.run_in_all(partial(read_selection, option))
        config.stash[CASES] = selection.cases()
        if supervised():
            disable_compilation_cache()
            begin_run(config, selection, corpus_N, clock)
    except (ValueError, OSError, processes.FailedElsewhere, processes.ProcessLost) as error:
        lost = isinstance(error, processes.ProcessLost)
        processes.end(in_order=not lost, why=str(error))  # an error in the options is one in all processes
        raise pytest.UsageError(str(error)) from error


def begin_run(config: pytest.Config, selection: Selection, corpus_N: Corpus, clock: Clock) -> None:
    """Create the session of the run and the plugins that report it.

    Raises:
        ValueError, OSError, processes.FailedElsewhere: the journal cannot be continued or written.
    """
    option = config.option
    if option.memory_profile:
        require_profiles(option)
    STOPS.listen()
    config.stash[HEART] = HeartbeatSender()
    settings = RunSettings(
        corpus_N,
        option.rounds or ROUNDS,
        0.0 if option.rounds else EXTRA_SECONDS,
        option.compile_only,
        option.trace_dir,
        option.case_timeout,
        option.attribution,
        checkpoint_folder(config),
        option.benchmark_json,
        option.memory_profile,
        predicting_machine(option.machine, option.topology) if option.machine else None,
    )
    run = config.stash[SESSION] = Session(settings, clock, shared_journal(option, selection, settings))
    if not processes.is_first():
        return disable_output(config)
    config.pluginmanager.register(Reporter(config, run), "meshmark-reporter")
    if processes.count() > 1 and option.benchmark_json:
        config.pluginmanager.register(IncrementalReport(config, run.rows), "meshmark-so-far")


def require_profiles(option: argparse.Namespace) -> None:
    """Check that memory profiles can be made and written.

    Raises:
        ValueError: nothing is run, or the folder cannot be written to.
    """
    if option.compile_only:
        problem = "--memory-profile says what steps hold that run, and --compile-only and --topology run none"
        raise ValueError(f"{problem}; `meshmark show` says it without running")
    require_folder(option.memory_profile)


def checkpoint_folder(config: pytest.Config) -> Path | None:
    """A folder for checkpoints, the same in all processes; None without `--checkpoint`. It is removed at the end."""
    if not config.option.checkpoint:
        return None
    first = processes.is_first()
    folder = processes.broadcast_first(lambda: tempfile.mkdtemp(prefix="meshmark-checkpoints-") if first else "")
    if first:
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    return Path(folder)


def read_selection(option: argparse.Namespace) -> tuple[Selection, Corpus]:
    """The selection of cases, and the corpus if anything is to be run.

    Raises:
        ValueError: the options are invalid, or the corpus cannot be used.
    """
    selection = selected(option)
    if option.compile_only:
        return selection, EMPTY_CORPUS
    return selection, read_corpus(option.corpus, selection.config, max(selection.batch_sizes))


def shared_journal(option: argparse.Namespace, selection: Selection, settings: RunSettings) -> Journal:
    """The journal of the first process; in other processes, a mirror of it.

    Raises:
        ValueError, OSError, processes.FailedElsewhere: the first process cannot continue or write it.
    """
    first = partial(open_journal, option, selection, settings) if processes.is_first() else lambda: None
    journal = processes.run_in_all(first)
    known = processes.broadcast_first(lambda: journal.snapshot() if journal else {})
    return journal or MirroredJournal(known)


def open_journal(option: argparse.Namespace, selection: Selection, settings: RunSettings) -> Journal:
    """Open the journal of this process.

    An earlier one is continued only if everything that identifies the run is equal.

    Raises:
        ValueError: something differs, there is no journal to resume, or JAX runs in several processes without
            --distributed.
        OSError: it cannot be written.
    """
    if jax.process_count() != processes.count():
        raise ValueError(f"JAX runs in {jax.process_count()} processes; make them measure together with --distributed")
    report = option.benchmark_json
    if option.resume and not (report and journal_path(report).exists()):
        raise ValueError("--resume continues a run that was stopped; give the --benchmark-json of that run")
    facts = compiler_facts(selection.topology) | {
        "schema": SCHEMA_VERSION,
        "python": platform.python_version(),
        "processor": platform.processor(),
        "glibc_tunables": glibc_tunables(),
        "selection": str(selection),
        "compile_only": settings.compile_only,
        "attribution": settings.attribution,
        "checkpoint": settings.checkpoints is not None,
        "memory_profile": settings.memory_profile is not None,
        "machine": str(settings.machine),
        "corpus": hashlib.sha256(settings.corpus_N.data).hexdigest()[:16],
    }
    after, cases = os.environ.get(RESUMED), {str(case) for case in selection.cases()}
    resume = option.resume or after is not None
    return Journal(Path(os.environ[JOURNAL]), facts, resume=resume, after=after, cases=cases)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for every case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.config.stash[CASES], ids=str)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order tests by comparison group: all cases of a group are checked before any of them is timed."""
    ours = [item for item in items if case_in(item)]
    groups = list(dict.fromkeys(case_in(item).single for item in ours))
    checks = [item for item in ours if "test_step[" not in item.nodeid]
    ours.sort(key=lambda item: (groups.index(case_in(item).single), item not in checks))
    items[:] = [item for item in items if item not in ours] + ours
    if config.option.compile_only:
        config.hook.pytest_deselected(items=checks)
        items[:] = [item for item in items if item not in checks]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the session which cases are left after -k."""
    if run := session.config.stash.get(SESSION, None):
        run.cases = list(dict.fromkeys(case for item in session.items if (case := case_in(item))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End the run if another process is lost, or if the journal cannot be written, which would lose results."""
    try:
        return (yield)
    except processes.ProcessLost as error:
        processes.end(in_order=False, why=str(error))
        advice = "finished cases are not lost: continue with --resume"
        pytest.exit(f"{error}; {advice}", returncode=PEER_LOST)
    finally:
        run = item.config.stash.get(SESSION, None)
        if run and run.journal.error:
            pytest.exit(f"{run.journal.error}; its rows are not lost: make room, and continue with --resume")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Publish the rows before pytest-benchmark writes its report. Remove the journal once that is written."""
    run = session.config.stash.get(SESSION, None)
    if run is None:
        return (yield)
    processes.end(in_order=session.exitstatus in NORMAL_EXITS)
    order, rows = [str(case) for case in session.config.stash[CASES]], run.close()
    if processes.is_first():
        publish(session.config, sorted(rows, key=lambda row: order.index(row.case)))
    try:
        with STOPS.while_writing(), atomic_report(session.config):
            result = yield
    except (OSError, KeyboardInterrupt) as error:
        why, status = ("Ctrl-C", INTERRUPTED) if isinstance(error, KeyboardInterrupt) else (str(error), UNWRITTEN)
        advice = f"the rows in {run.journal.path} are not lost: continue with --resume"
        pytest.exit(f"the report was not written ({why}); {advice}", returncode=status)
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = UNWRITTEN if run.journal.error else INTERRUPTED
    if session.exitstatus == pytest.ExitCode.OK and infeasible(rows):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if {str(case) for case in run.cases} <= run.rows.keys():
        run.journal.remove()
    run.journal.close()
    forget_effects()
    session.config.stash[HEART].stop(int(session.exitstatus))
    return result


def infeasible(rows: Sequence[Row]) -> bool:
    """Whether all rows are infeasible. A run without any number is not a success."""
    return bool(rows) and all(row.extra_info["status"] == "infeasible" for row in rows)


@pytest.fixture
def session(pytestconfig: pytest.Config) -> Session:
    """The session shared by all cases."""
    return pytestconfig.stash[SESSION]


def case_in(item: pytest.Item) -> Any:
    """The case of one of our tests; None for other tests."""
    return item.callspec.params.get("case") if hasattr(item, "callspec") else None  # pyright: ignore


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Move rows without samples to where programs that read pytest-benchmark's files do not look."""
    move_untimed_rows(output_json)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Describe the machine in the report."""
    update_machine_info(machine_info, config.stash[SESSION].matmul_rates, config.option.topology)
