"""Runs `pytest benchmarks` in a process of its own, and another where that one dies: the sweep goes on without the
case that killed it.

A backend that aborts, the system's answer to too little memory and a collective that hangs all end the process that
they happen in. The journal holds what was measured until then.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from benchmarks.cluster.heartbeat import HEARTBEAT, Listener
from benchmarks.commandline.ending import INTERRUPTED
from benchmarks.harness.journal import STOPPED
from benchmarks.harness.stopping import PASSED_ON
from benchmarks.statuses import A_TIMEOUT, LOST, TIMED_OUT, UNWRITTEN

JOURNAL = "MESHMARK_JOURNAL"
"""The variable by which a supervised process knows its journal."""
RESUMED = "MESHMARK_RESUMED"
"""Set for a process that goes on with the journal of one that died; says of what."""
PATIENCE_SECONDS = 2.0
"""For the process that measures to do as it was told; then it is said what is waited for, or it is killed."""
GRACE_SECONDS = 10.0
"""For a busy machine: so much longer than the process's own watchdog, which has more to say, the supervisor waits."""
TICK_SECONDS = 0.25


def supervised() -> bool:
    """Whether this process has somebody to go on if it dies."""
    return JOURNAL in os.environ


def supervise(
    arguments: Sequence[str], journal: Path | None, *, alone: bool = True, timeout_seconds: float = 600.0
) -> int:
    """Run pytest until it has ended in an orderly way; its exit status.

    Args:
        arguments: of pytest.
        journal: where it is to be; without one it is a temporary file.
        alone: nobody else takes part. Of several processes one that dies ends all.
        timeout_seconds: after which a process that shows no sign of life is ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = journal or Path(folder, "journal.jsonl")
        environment = os.environ | {JOURNAL: str(path)}
        while True:
            before = content(path)
            command = [sys.executable, "-m", "pytest", *arguments]
            status, told = run(command, environment, timeout_seconds=timeout_seconds)
            written = content(path).removeprefix(before)
            if told:
                return stopped(status, content(path))
            if ended(status, written):
                return 128 - status if status < 0 else status
            death = death_of(status)
            if not alone:
                kept = f"; {journal} has the rows that had ended, for --resume" if journal else ""
                print(f"\nthe benchmarks ended by {death}, and in all other processes with it{kept}", file=sys.stderr)
                return 128 - status if status < 0 else status
            print(f"\nthe benchmarks ended by {death}; going on with the cases that are left", file=sys.stderr)
            environment |= {RESUMED: death}


def stopped(status: int, written: bytes) -> int:
    """The exit status of a run that was told to stop.

    Success, refused options and an unwritable report keep their status. All else has that of Ctrl-C: a process that was
    killed, or interrupted while it shut down, ends with a status that says nothing.

    Args:
        status: of the process that measured.
        written: its journal.
    """
    if status in (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR, UNWRITTEN):
        return status
    if b'"began"' not in written:
        print("\nstopped before a case had begun", file=sys.stderr)
    return INTERRUPTED


def content(journal: Path) -> bytes:
    """What is written in it, if it is there."""
    return journal.read_bytes() if journal.exists() else b""


def ended(status: int, written: bytes) -> bool:
    """Whether a process that wrote this into its journal has ended, or has died: then another goes on.

    >>> ended(1, b'{"began": "single"}\\n{"stopped": true}\\n'), ended(1, b'{"began": "single"}\\n')
    (True, False)
    """
    meant = pytest.ExitCode.USAGE_ERROR, UNWRITTEN, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP
    # What is written when the options were refused, another run wrote.
    return status in meant or b'"began"' not in written or written.endswith(STOPPED)


def death_of(status: int) -> str:
    """What a process died of.

    >>> death_of(-signal.SIGABRT), death_of(3)
    ('SIGABRT', 'exit status 3')
    """
    if status == TIMED_OUT:
        return A_TIMEOUT
    if status == LOST:
        return "the loss of another process"
    if status == -signal.SIGKILL:
        return "SIGKILL, of which too little memory is the usual cause"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def run(command: Sequence[str], environment: dict[str, str], *, timeout_seconds: float = 600.0) -> tuple[int, bool]:
    """Run a command to its end, whatever is pressed meanwhile; its exit status, and whether it was told to stop.

    Whoever stops this process alone stops the command, too. One that was told twice and does not end is killed, and so
    is one whose heart does not beat for `timeout_seconds`: its status is `TIMED_OUT`, or that which it had told.
    """
    told: list[float] = []
    with closing(Listener()) as listener, hearing(told) as started:
        own = environment | {HEARTBEAT: str(listener.descriptor)}
        # Of a process that loads its libraries Ctrl-C makes a traceback in each thread: until it listens, it hears only
        # what this one passes on, which ends it without a word.
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
        try:
            process = subprocess.Popen(command, env=own, pass_fds=[listener.descriptor])
        finally:
            signal.signal(signal.SIGINT, heard)
        listener.started()
        started(process)
        said = False
        while process.poll() is None:
            listener.listen(TICK_SECONDS)
            waited = time.monotonic() - told[min(len(told), 2) - 1] if told else 0.0
            if len(told) > 2 or (len(told) == 2 and waited > PATIENCE_SECONDS):
                process.kill()
            elif told and waited > PATIENCE_SECONDS and not said:
                said = True
                print(f"\nstopping: {awaited(environment, timeout_seconds)}", file=sys.stderr)
            if listener.silent_seconds > timeout_seconds + GRACE_SECONDS:
                process.kill()
                process.wait()
                return last_status(listener), bool(told)
        return process.returncode, bool(told)


def last_status(listener: Listener) -> int:
    """The exit status of a process that was killed because it was silent."""
    if listener.status is None:
        return TIMED_OUT
    print("\nthe benchmarks were done, and their process hung while it shut down; it was killed", file=sys.stderr)
    return listener.status


@contextmanager
def hearing(told: list[float]) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Note when this process is told to stop, and pass it on to the one that is named when it has started.

    Handlers, not SIG_IGN, which the process would inherit; and where SIGINT was ignored, as in the background of a
    script, it is heard, too: nobody else sends it to a run that is to go on.

    Before, while pytest loads itself and its plugins, some 0.3 seconds, Ctrl-C is Python's: it prints a traceback, and
    nothing has begun.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def hear(number: int, _: object) -> None:
        told.append(time.monotonic())
        for process in processes:
            process.send_signal(PASSED_ON)

    def started(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        if told:  # before there was anybody to pass it on to
            process.send_signal(PASSED_ON)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def awaited(environment: Mapping[str, str], timeout_seconds: float) -> str:
    """What a process that was told to stop is still doing."""
    case = running(content(Path(environment[JOURNAL])))
    doing = f"{case} cannot be interrupted where it is" if case else "it cannot be interrupted where it is"
    return f"{doing}, and is waited for, {timeout_seconds:g} seconds at most; Ctrl-C again ends it at once"


def running(journal: bytes) -> str | None:
    """The case that runs, by the last whole line of a journal.

    >>> running(b'{"began": "single"}\\n{"beg'), running(b'{"began": "single"}\\n{"stopped": true}\\n')
    ('single', None)
    """
    lines = journal[: journal.rfind(b"\n") + 1].splitlines()
    return json.loads(lines[-1]).get("began") if lines else None
