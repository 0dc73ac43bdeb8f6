"""How `pytest benchmarks` runs: cases from the options, a line for each as it ends, a table and a report at the end."""

import argparse
import hashlib
import os
import platform
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import processes
from benchmarks.cases import Case, Selection
from benchmarks.clock import Clock
from benchmarks.corpus import NO_TEXT, Corpus, read_corpus
from benchmarks.journal import Journal, Silent, journal_path
from benchmarks.launch import IN_ORDER
from benchmarks.machine import compiler_facts, update_machine_info
from benchmarks.options import selected
from benchmarks.publish import (
    SoFar,
    publish,
    quieten,
    report_nothing,
    require_writable,
    set_untimed_apart,
    whole_report,
)
from benchmarks.pulse import LOST
from benchmarks.reporter import Reporter
from benchmarks.session import Plan, Session
from benchmarks.supervise import CTRL_C, JOURNAL, RESUMED, UNWRITTEN, stop_once, supervise, supervised

CASES = pytest.StashKey[list[Case]]()
SESSION = pytest.StashKey[Session]()


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Leave the run to a process of its own, so that a case that kills it does not end the sweep."""
    option = config.option
    if supervised() or option.help or option.version or option.collectonly:
        return None
    if getattr(option, "numprocesses", None):
        raise pytest.UsageError("cases are timed one at a time, or they would slow each other down; leave out -n")
    report = option.benchmark_json
    try:
        alone = not processes.asked(option)
        if alone:  # of several the first has it, which is not known yet
            require_journal(option)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    require_writable(report)
    return supervise(config.invocation_params.args, report and journal_path(report), alone=alone)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot work before anything is compiled."""
    option, clock = config.option, Clock()
    option.compile_only |= option.topology is not None
    # Errors in the tests; to someone who measures, a warning of a newer library is no failure of the step.
    config.addinivalue_line("filterwarnings", "default")
    quieten(config)
    if not (supervised() or option.collectonly):
        return  # the process that measures looks at the rest: it starts the backend
    try:
        if supervised():
            processes.join(option)
        chosen, corpus_N = processes.together(partial(choose, option))
        config.stash[CASES] = chosen.cases()
        if supervised():
            signal.signal(signal.SIGTERM, stop_once)
            plan = Plan(
                corpus_N,
                option.case_seconds,
                option.compile_only,
                option.trace_dir,
                option.case_timeout,
                option.attribution,
            )
            run = config.stash[SESSION] = Session(plan, clock, shared_journal(option, chosen, plan))
            if not processes.is_first():
                return report_nothing(config)
            config.pluginmanager.register(Reporter(config, run), "meshmark-reporter")
            if processes.count() > 1 and option.benchmark_json:
                config.pluginmanager.register(SoFar(config, run.rows), "meshmark-so-far")
    except (ValueError, OSError, processes.Elsewhere, processes.Lost) as error:
        lost = isinstance(error, processes.Lost)
        processes.end(in_order=not lost, why=str(error))  # what is refused, all have refused
        raise pytest.UsageError(str(error)) from error


def choose(option: argparse.Namespace) -> tuple[Selection, Corpus]:
    """What the options ask for, and the text, if anything is to run.

    Raises:
        ValueError: there is no such thing.
    """
    chosen = selected(option)
    return chosen, NO_TEXT if option.compile_only else read_corpus(
        option.corpus, chosen.config, max(chosen.batch_sizes)
    )


def require_journal(option: argparse.Namespace) -> None:
    """See that there is a run to go on with, if that is asked for.

    Raises:
        ValueError: there is none.
    """
    report = option.benchmark_json
    if option.resume and not (report and journal_path(report).exists()):
        raise ValueError("--resume goes on with a run that was stopped; name its --benchmark-json")


def shared_journal(option: argparse.Namespace, chosen: Selection, plan: Plan) -> Journal:
    """The journal of the first process; in the others what it knows.

    Raises:
        ValueError, OSError, processes.Elsewhere: the first process cannot go on with it, or write it.
    """
    first = partial(open_journal, option, chosen, plan) if processes.is_first() else lambda: None
    journal = processes.together(first)
    known = processes.of_first(lambda: journal.known() if journal else {})
    return journal or Silent(known)


def open_journal(option: argparse.Namespace, chosen: Selection, plan: Plan) -> Journal:
    """The journal of this process, which goes on with that of an earlier one only if all is as it was.

    Raises:
        ValueError: it is not, or there is none, or this process is one of several that do not know of each other.
        OSError: it cannot be written.
    """
    if jax.process_count() != processes.count():
        raise ValueError(f"JAX runs in {jax.process_count()} processes; have them work together with --distributed")
    require_journal(option)
    facts = compiler_facts(chosen.topology) | {
        "python": platform.python_version(),
        "processor": platform.processor(),
        "selection": str(chosen),
        "compile_only": plan.compile_only,
        "attribution": plan.attribution,
        "corpus": hashlib.sha256(plan.corpus_N.tobytes()).hexdigest()[:16],
    }
    after = os.environ.get(RESUMED)
    return Journal(Path(os.environ[JOURNAL]), facts, resume=option.resume or after is not None, after=after)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.config.stash[CASES], ids=str)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One comparison group after another: all of its cases are checked before they are timed in turns."""
    if CASES not in config.stash:
        raise pytest.UsageError("the benchmarks run alone: pytest benchmarks")
    ours = [item for item in items if case_in(item)]
    groups = list(dict.fromkeys(case.single for case in config.stash[CASES]))
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
        with whole_report(session.config):
            result = yield
    except (OSError, KeyboardInterrupt) as error:
        why, status = ("Ctrl-C", CTRL_C) if isinstance(error, KeyboardInterrupt) else (str(error), UNWRITTEN)
        kept = f"what {run.journal.path} holds is not lost: go on with --resume"
        pytest.exit(f"the report was not written ({why}); {kept}", returncode=status)
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = UNWRITTEN if run.journal.error else CTRL_C
    if {str(case) for case in run.cases} <= run.rows.keys():
        run.journal.remove()
    run.journal.close()
    return result


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
