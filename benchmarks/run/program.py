"""The program that measures: `pytest benchmarks` runs it under a supervisor (`supervise.py`).

It receives the options, sends the cases that they select, receives those that pytest has left (-k), and sends every
line of the journal and how it ends.
"""

import argparse
import hashlib
import os
import platform
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import jax

from benchmarks.cases.case import Case, Selection
from benchmarks.cases.columns import SCHEMA_VERSION
from benchmarks.cases.selection import selected
from benchmarks.cli.options import EXTRA_SECONDS, ROUNDS, dashed
from benchmarks.cli.outputs import require_folder
from benchmarks.cli.starting import resume_collection
from benchmarks.cli.statuses import INTERRUPTED, PEER_LOST, REFUSED, UNWRITTEN
from benchmarks.cluster import processes
from benchmarks.run.compilation import Clock
from benchmarks.run.corpus import EMPTY_CORPUS, Corpus, read_corpus
from benchmarks.run.engine import Engine, in_order
from benchmarks.run.journal import Journal, MirroredJournal, report_path, require_journal
from benchmarks.run.machine import (
    compiler_facts,
    disable_compilation_cache,
    glibc_tunables,
    machine_facts,
    use_virtual_devices,
)
from benchmarks.run.progress import Progress, print_summary, say_regularly
from benchmarks.run.remat import resolved_remats
from benchmarks.run.states import RunSettings
from benchmarks.run.supervise import JOURNAL, RESUMED, STOP
from benchmarks.simulate.machines import machine_for_run
from strategies.backends.backend import private

OF_RUNNING = "memory_profile", "trace_dir", "attribution"
"""Options that need steps that run."""


def main(supervisor: Connection) -> int:
    """Run the program.

    Returns:
        The exit status: 0 if all cases have ended; 4 if something cannot work, which is refused before anything is
        compiled.
    """
    resume_collection()
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    use_virtual_devices()
    with ExitStack() as stack:
        try:
            signal.signal(STOP, stop)
            option = argparse.Namespace(**supervisor.recv())
            option.compile_only |= option.topology is not None
            ready = set_up(option, supervisor, stack)
        except (KeyboardInterrupt, EOFError):  # stopped, or the supervisor has ended
            return INTERRUPTED
        except (ValueError, OSError, processes.FailedElsewhere, processes.ProcessLost) as error:
            lost = isinstance(error, processes.ProcessLost)
            processes.end(in_order=not lost, why=str(error))  # an error in the options is one in all processes
            supervisor.send({"refused": str(error)})
            return REFUSED
        return run(*ready, supervisor) if ready else 0


def stop(number: int, _: object) -> None:
    """Stop the run in order at the first signal of the supervisor, and at once at the second."""
    signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    raise KeyboardInterrupt


def set_up(
    option: argparse.Namespace, supervisor: Connection, stack: ExitStack
) -> tuple[Engine, list[Case], Selection] | None:
    """Join the other processes, select the cases and open the journal; None if cases are only listed."""
    listing, clock = JOURNAL not in os.environ, Clock()
    if not listing:
        processes.join(option)
    selection, corpus_N = processes.run_in_all(partial(read_selection, option))
    cases = selection.cases()
    cases = in_order(resolved_remats(cases, option.machine) if option.remat == "auto" else cases)
    known = {"cases": [str(case) for case in cases], "first": processes.is_first()}
    known["machine"] = machine_facts({}, selection.topology)
    if listing:
        supervisor.send(known)
        return None
    disable_compilation_cache()
    settings = settings_of(option, corpus_N, selection)
    journal = shared_journal(Path(os.environ[JOURNAL]), option, selection, settings)
    stack.callback(journal.close)
    journal.listeners.append(supervisor.send)
    supervisor.send(known)
    for row in journal.rows.values():
        supervisor.send({"row": asdict(row)})
    chosen = supervisor.recv()
    cases = [case for case in cases if str(case) in chosen]
    if not processes.is_first():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Engine(settings, journal, clock), cases, selection


def run(engine: Engine, cases: Sequence[Case], selection: Selection, supervisor: Connection) -> int:
    """Measure cases, tell how that ends, and print a summary; the exit status."""
    journal, lines = engine.states.journal, Progress(engine.settings, engine.clock, engine.rows, len(cases))
    journal.listeners.insert(0, lines.hear)  # before the supervisor, whose pytest then writes to the same terminal
    status, why = 0, ""
    try:
        with say_regularly(lines.doing):
            engine.run(cases)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except processes.ProcessLost as error:
        processes.end(in_order=False, why=str(error))
        status, why = PEER_LOST, f"{error}; finished cases are not lost: continue with --resume"
    except Exception as error:
        if not journal.error:
            raise
        status, why = UNWRITTEN, f"{error}; its rows are not lost: make room, and continue with --resume"
    signal.signal(STOP, signal.SIG_IGN)  # it is ending
    processes.end(in_order=status == 0)
    interrupted = [{"row": asdict(row)} for row in engine.states.close()]
    report = report_path(journal.path) if journal.path else None
    if engine.rows:
        absent = selection.topology is not None
        print_summary([*engine.rows.values()], engine.clock, report, absent=absent)
    facts = machine_facts(engine.matmul_rates, selection.topology)
    supervisor.send({"machine": facts, "ended": status, "why": why, "interrupted": interrupted})
    forget_effects()
    return status


def forget_effects() -> None:
    """Discard the errors of failed callbacks. JAX would otherwise wait for them at exit and print them again."""
    runtime_tokens = private("jax._src.dispatch", "runtime_tokens")  # `jax.effects_barrier` keeps failed ones
    with suppress(Exception):
        runtime_tokens.block_until_ready()
    runtime_tokens.clear()


def read_selection(option: argparse.Namespace) -> tuple[Selection, Corpus]:
    """The selection of cases, and the corpus if anything is to be run."""
    selection = selected(option)
    if option.compile_only:
        return selection, EMPTY_CORPUS
    return selection, read_corpus(option.corpus, selection.config, max(selection.batch_sizes))


def settings_of(option: argparse.Namespace, corpus_N: Corpus, selection: Selection) -> RunSettings:
    """The settings of a run."""
    for name in OF_RUNNING:
        if (given := getattr(option, name)) and option.compile_only:
            problem = f"--{dashed(name)} needs steps that run, and --compile-only and --topology only compile them"
            raise ValueError(f"{problem}; omit --{dashed(name)} (`meshmark show` says what steps hold and send)")
        if isinstance(given, Path):
            require_folder(given)
    return RunSettings(
        corpus_N,
        rounds=option.rounds or ROUNDS,
        extra_seconds=0.0 if option.rounds else EXTRA_SECONDS / len({case.single for case in selection.cases()}),
        compile_only=option.compile_only,
        trace=option.trace_dir,
        case_timeout=option.case_timeout,
        attribution=option.attribution,
        memory_profile=option.memory_profile,
        machine=machine_for_run(option.machine, option.topology) if option.machine else None,
    )


def shared_journal(path: Path, option: argparse.Namespace, selection: Selection, settings: RunSettings) -> Journal:
    """The journal of the first process; in other processes, a mirror of it."""
    first = partial(open_journal, path, option, selection, settings) if processes.is_first() else lambda: None
    journal = processes.run_in_all(first)
    known = processes.broadcast_first(lambda: journal.snapshot() if journal else {})
    return journal or MirroredJournal(known)


def open_journal(path: Path, option: argparse.Namespace, selection: Selection, settings: RunSettings) -> Journal:
    """Open the journal of this process.

    An earlier one is continued only if everything that identifies the run is equal.
    """
    if jax.process_count() != processes.count():
        raise ValueError(f"JAX runs in {jax.process_count()} processes; make them measure together with --distributed")
    if option.resume:
        require_journal(path)
    facts = compiler_facts(selection.topology) | {
        "schema": SCHEMA_VERSION,
        "python": platform.python_version(),
        "processor": platform.processor(),
        "glibc_tunables": glibc_tunables(),
        "selection": str(selection),
        "compile_only": settings.compile_only,
        "attribution": settings.attribution,
        "memory_profile": settings.memory_profile is not None,
        "machine": str(settings.machine),
        "corpus": hashlib.sha256(settings.corpus_N.data).hexdigest()[:16],
    }
    after, ids = os.environ.get(RESUMED), {str(case) for case in selection.cases()}
    return Journal(path, facts, resume=option.resume or after is not None, after=after, cases=ids)
