"""What `pytest benchmarks` does in the process that measures: a plugin of pytest's, registered by conftest.py.

Cases come from the options; there is a line for each as it ends, and a table and a report at the end.
"""

import argparse
import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.arguments import read_late
from benchmarks.cases import Case, Selection
from benchmarks.cluster import processes
from benchmarks.cluster.heartbeat import Heart
from benchmarks.commandline.ending import INTERRUPTED
from benchmarks.harness.clock import Clock
from benchmarks.harness.corpus import NO_TEXT, Corpus, read_corpus
from benchmarks.harness.journal import Journal, Silent, journal_path
from benchmarks.harness.lifecycle import RunPlan
from benchmarks.harness.session import Session
from benchmarks.harness.stopping import Stops
from benchmarks.harness.supervise import JOURNAL, RESUMED, supervised
from benchmarks.options import selected
from benchmarks.reporting.publish import SoFar, publish, report_nothing, set_untimed_apart, whole_report
from benchmarks.reporting.reporter import Reporter
from benchmarks.row import Row
from benchmarks.statuses import IN_ORDER, LOST, UNWRITTEN
from benchmarks.timing.machine import (
    compile_anew,
    compiler_facts,
    glibc_tunables,
    update_machine_info,
    use_virtual_devices,
)
from benchmarks.timing.measure import forget_effects

CASES = pytest.StashKey[list[Case]]()
HEART = pytest.StashKey[Heart]()
SESSION = pytest.StashKey[Session]()
STOPS = Stops()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot work before anything is compiled."""
    option, clock = config.option, Clock()
    use_virtual_devices()
    try:
        read_late(option)
        option.compile_only |= option.topology is not None
        if supervised():
            processes.join(option)
        chosen, corpus_N = processes.together(partial(choose, option))
        config.stash[CASES] = chosen.cases()
        if supervised():
            compile_anew()
            begin(config, chosen, corpus_N, clock)
    except (ValueError, OSError, processes.Elsewhere, processes.Lost) as error:
        lost = isinstance(error, processes.Lost)
        processes.end(in_order=not lost, why=str(error))  # what is refused, all have refused
        raise pytest.UsageError(str(error)) from error


def begin(config: pytest.Config, chosen: Selection, corpus_N: Corpus, clock: Clock) -> None:
    """Begin the run: its session, and who says how it goes.

    Raises:
        ValueError, OSError, processes.Elsewhere: the journal cannot be gone on with, or written.
    """
    option = config.option
    STOPS.listen()
    config.stash[HEART] = Heart()
    plan = RunPlan(
        corpus_N,
        option.rounds,
        option.compile_only,
        option.trace_dir,
        option.case_timeout,
        option.attribution,
        option.benchmark_json,
    )
    run = config.stash[SESSION] = Session(plan, clock, shared_journal(option, chosen, plan))
    if not processes.is_first():
        return report_nothing(config)
    config.pluginmanager.register(Reporter(config, run), "meshmark-reporter")
    if processes.count() > 1 and option.benchmark_json:
        config.pluginmanager.register(SoFar(config, run.rows), "meshmark-so-far")


def choose(option: argparse.Namespace) -> tuple[Selection, Corpus]:
    """What the options ask for, and the text, if anything is to run.

    Raises:
        ValueError: there is no such thing.
    """
    chosen = selected(option)
    if option.compile_only:
        return chosen, NO_TEXT
    return chosen, read_corpus(option.corpus, chosen.config, max(chosen.batch_sizes))


def shared_journal(option: argparse.Namespace, chosen: Selection, plan: RunPlan) -> Journal:
    """The journal of the first process; in the others what it knows.

    Raises:
        ValueError, OSError, processes.Elsewhere: the first process cannot go on with it, or write it.
    """
    first = partial(open_journal, option, chosen, plan) if processes.is_first() else lambda: None
    journal = processes.together(first)
    known = processes.of_first(lambda: journal.known() if journal else {})
    return journal or Silent(known)


def open_journal(option: argparse.Namespace, chosen: Selection, plan: RunPlan) -> Journal:
    """The journal of this process, which goes on with that of an earlier one only if all is as it was.

    Raises:
        ValueError: it is not, or there is none, or this process is one of several that do not know of each other.
        OSError: it cannot be written.
    """
    if jax.process_count() != processes.count():
        raise ValueError(f"JAX runs in {jax.process_count()} processes; have them work together with --distributed")
    report = option.benchmark_json
    if option.resume and not (report and journal_path(report).exists()):
        raise ValueError("--resume goes on with a run that was stopped; name its --benchmark-json")
    facts = compiler_facts(chosen.topology) | {
        "python": platform.python_version(),
        "processor": platform.processor(),
        "glibc_tunables": glibc_tunables(),
        "selection": str(chosen),
        "compile_only": plan.compile_only,
        "attribution": plan.attribution,
        "corpus": hashlib.sha256(plan.corpus_N.data).hexdigest()[:16],
    }
    after = os.environ.get(RESUMED)
    return Journal(Path(os.environ[JOURNAL]), facts, resume=option.resume or after is not None, after=after)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.config.stash[CASES], ids=str)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One comparison group after another: all of its cases are checked before they are timed in turns."""
    ours = [item for item in items if case_in(item)]
    groups = list(dict.fromkeys(case_in(item).single for item in ours))
    checks = [item for item in ours if "test_step[" not in item.nodeid]
    ours.sort(key=lambda item: (groups.index(case_in(item).single), item not in checks))
    items[:] = [item for item in items if item not in ours] + ours
    if config.option.compile_only:
        config.hook.pytest_deselected(items=checks)
        items[:] = [item for item in items if item not in checks]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the run which cases are left after -k."""
    if run := session.config.stash.get(SESSION, None):
        run.cases = list(dict.fromkeys(case for item in session.items if (case := case_in(item))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End the run where its journal cannot be written: what it goes on to measure would be lost."""
    try:
        return (yield)
    except processes.Lost as error:
        processes.end(in_order=False, why=str(error))
        kept = "what had ended is not lost: go on with --resume"
        pytest.exit(f"{error}; {kept}", returncode=LOST)
    finally:
        run = item.config.stash.get(SESSION, None)
        if run and run.journal.error:
            pytest.exit(f"{run.journal.error}; what it holds is not lost: make room, and go on with --resume")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Hand the rows to pytest-benchmark before it writes its report; the journal goes when that is written."""
    run = session.config.stash.get(SESSION, None)
    if run is None:
        return (yield)
    processes.end(in_order=session.exitstatus in IN_ORDER)
    order, rows = [str(case) for case in session.config.stash[CASES]], run.close()
    if processes.is_first():
        publish(session.config, sorted(rows, key=lambda row: order.index(row.case)))
    try:
        with STOPS.while_writing(), whole_report(session.config):
            result = yield
    except (OSError, KeyboardInterrupt) as error:
        why, status = ("Ctrl-C", INTERRUPTED) if isinstance(error, KeyboardInterrupt) else (str(error), UNWRITTEN)
        kept = f"what {run.journal.path} holds is not lost: go on with --resume"
        pytest.exit(f"the report was not written ({why}); {kept}", returncode=status)
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = UNWRITTEN if run.journal.error else INTERRUPTED
    if session.exitstatus == pytest.ExitCode.OK and infeasible(rows):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if {str(case) for case in run.cases} <= run.rows.keys():
        run.journal.remove()
    run.journal.close()
    forget_effects()
    session.config.stash[HEART].rest(int(session.exitstatus))
    return result


def infeasible(rows: Sequence[Row]) -> bool:
    """Whether nothing that was asked for can be: a run that has no number is no success."""
    return bool(rows) and all(row.extra_info["status"] == "infeasible" for row in rows)


@pytest.fixture
def session(pytestconfig: pytest.Config) -> Session:
    """What the cases of this run share."""
    return pytestconfig.stash[SESSION]


def case_in(item: pytest.Item) -> Any:
    """The case of a test of ours; None of another's."""
    return item.callspec.params.get("case") if hasattr(item, "callspec") else None  # pyright: ignore


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Keep rows without samples apart, where programs that read pytest-benchmark's files do not look."""
    set_untimed_apart(output_json)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Say in the report what it was measured on."""
    update_machine_info(machine_info, config.stash[SESSION].matmul_rates, config.option.topology)
