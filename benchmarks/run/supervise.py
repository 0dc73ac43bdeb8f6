"""Supervisor: runs `pytest benchmarks` in a child process, and restarts it without the case that killed it.

Aborts of a backend, the system's out-of-memory killer and hanging collectives all end the process that they happen in.
The journal holds the rows that were finished before.
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

from benchmarks.cluster.heartbeat import HEARTBEAT, HeartbeatListener
from benchmarks.commandline.ending import INTERRUPTED
from benchmarks.commandline.parent import bound
from benchmarks.commandline.statuses import PEER_LOST, TIMED_OUT, TIMEOUT_CAUSE, UNWRITTEN
from benchmarks.run.journal import STOPPED
from benchmarks.run.stopping import FORWARDED

JOURNAL = "MESHMARK_JOURNAL"
"""Environment variable with the journal's path, for the supervised process."""
RESUMED = "MESHMARK_RESUMED"
"""Environment variable with a cause of death, for a process that continues the journal of one that died."""
PATIENCE_SECONDS = 2.0
"""Time for the supervised process to react to a stop. After that, a message says what it is doing, or it is killed."""
GRACE_SECONDS = 10.0
"""Additional timeout of the supervisor. The process's own watchdog, which reports more, comes first even on a busy
machine."""
TICK_SECONDS = 0.25
"""Longest wait for a heartbeat before other checks."""


def supervised() -> bool:
    """Whether this process runs under a supervisor."""
    return JOURNAL in os.environ


def supervise(
    arguments: Sequence[str], journal: Path | None, *, alone: bool = True, timeout_seconds: float = 600.0
) -> int:
    """Run pytest in child processes until one of them ends in order, and return its exit status.

    Args:
        arguments: of pytest.
        journal: path of the journal; None for a temporary file.
        alone: whether this is a single-process run. In a multi-process run, one death ends all.
        timeout_seconds: time without a heartbeat after which the child is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = journal or Path(folder, "journal.jsonl")
        environment = os.environ | {JOURNAL: str(path)}
        while True:
            before = journal_content(path)
            command = [sys.executable, "-m", "pytest", *arguments]
            status, told_to_stop = run(command, environment, timeout_seconds=timeout_seconds)
            written = journal_content(path).removeprefix(before)
            if told_to_stop:
                content = journal_content(path)
                status = stop_status(status, content)
                if status == INTERRUPTED and journal and b'"began"' in content and not content.endswith(STOPPED):
                    print(f"\nstopped; {journal} has the finished cases: continue with --resume", file=sys.stderr)
                return status
            if ended_normally(status, written):
                return 128 - status if status < 0 else status
            death = cause_of_death(status)
            if not alone:
                advice = f"; {journal} has the finished rows, for --resume" if journal else ""
                print(
                    f"\nthe benchmarks were ended by {death}, and so were all other processes{advice}", file=sys.stderr
                )
                return 128 - status if status < 0 else status
            print(f"\nthe benchmarks were ended by {death}; continuing with the remaining cases", file=sys.stderr)
            environment |= {RESUMED: death}


def stop_status(status: int, written: bytes) -> int:
    """Exit status of a run that was told to stop.

    Success, rejected options and an unwritable report keep their status. Everything else gets the status of Ctrl-C,
    because a process that was killed, or interrupted while it shut down, ends with a meaningless status.

    Args:
        status: of the child.
        written: its journal.
    """
    if status in (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR, UNWRITTEN):
        return status
    if b'"began"' not in written:
        print("\nstopped before a case had begun", file=sys.stderr)
    return INTERRUPTED


def journal_content(journal: Path) -> bytes:
    """Content of a journal; empty if it does not exist."""
    return journal.read_bytes() if journal.exists() else b""


def ended_normally(status: int, written: bytes) -> bool:
    """Whether a child ended on purpose; otherwise it died, and another one continues.

    Args:
        status: its exit status.
        written: what it wrote into its journal.

    >>> ended_normally(1, b'{"began": "single"}\\n{"stopped": true}\\n'), ended_normally(1, b'{"began": "single"}\\n')
    (True, False)
    """
    intended = pytest.ExitCode.USAGE_ERROR, UNWRITTEN, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP
    # If the options were rejected, the journal's content is from another run.
    return status in intended or b'"began"' not in written or written.endswith(STOPPED)


def cause_of_death(status: int) -> str:
    """Describe what a process died of.

    Args:
        status: its exit status, negative for a signal as in `subprocess`.

    >>> cause_of_death(-signal.SIGABRT), cause_of_death(3)
    ('SIGABRT', 'exit status 3')
    """
    if status == TIMED_OUT:
        return TIMEOUT_CAUSE
    if status == PEER_LOST:
        return "the loss of another process"
    if status == -signal.SIGKILL:
        return "SIGKILL, usually sent when memory runs out"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def run(command: Sequence[str], environment: dict[str, str], *, timeout_seconds: float = 600.0) -> tuple[int, bool]:
    """Run a command until it exits, and forward stop signals to it.

    A command that was told to stop twice and does not exit is killed. So is one without heartbeat for
    `timeout_seconds`; its status is then `TIMED_OUT`, or the one it had reported.

    Returns:
        Its exit status, and whether it was told to stop.
    """
    stop_times: list[float] = []
    with closing(HeartbeatListener()) as listener, forwarding_signals(stop_times) as started:
        child_environment = environment | bound() | {HEARTBEAT: str(listener.descriptor)}
        # While a process loads its libraries, Ctrl-C prints a traceback from every thread. So the child ignores SIGINT
        # until it installs handlers, and reacts only to the forwarded signal, whose default action ends it silently.
        handler_before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
        try:
            process = subprocess.Popen(command, env=child_environment, pass_fds=[listener.descriptor])
        finally:
            signal.signal(signal.SIGINT, handler_before)
        listener.started()
        started(process)
        announced = False
        while process.poll() is None:
            listener.listen(TICK_SECONDS)
            waited = time.monotonic() - stop_times[min(len(stop_times), 2) - 1] if stop_times else 0.0
            if len(stop_times) > 2 or (len(stop_times) == 2 and waited > PATIENCE_SECONDS):
                process.kill()
            elif stop_times and waited > PATIENCE_SECONDS and not announced:
                announced = True
                print(f"\nstopping: {waiting_message(environment, timeout_seconds)}", file=sys.stderr)
            if listener.silent_seconds > timeout_seconds + GRACE_SECONDS:
                process.kill()
                process.wait()
                return last_status(listener), bool(stop_times)
        return process.returncode, bool(stop_times)


def last_status(listener: HeartbeatListener) -> int:
    """Exit status of a process that was killed for lack of heartbeats."""
    if listener.status is None:
        return TIMED_OUT
    print("\nthe benchmarks were done, but their process hung during shutdown and was killed", file=sys.stderr)
    return listener.status


@contextmanager
def forwarding_signals(stop_times: list[float]) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Record the times at which this process is told to stop, and forward each stop to the child.

    Yields a function to call with the child once it has started. Handlers are used instead of SIG_IGN, which the child
    would inherit. SIGINT is handled even if it was ignored before, as in the background of a shell script, because
    nobody sends it to a run that should go on.

    Args:
        stop_times: filled with `time.monotonic()` of each stop.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        stop_times.append(time.monotonic())
        for process in processes:
            process.send_signal(FORWARDED)

    def started(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        if stop_times:  # told to stop before the child had started
            process.send_signal(FORWARDED)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def waiting_message(environment: Mapping[str, str], timeout_seconds: float) -> str:
    """Say what a process that was told to stop is still doing."""
    case = running(journal_content(Path(environment[JOURNAL])))
    doing = f"{case} cannot be interrupted right now" if case else "it cannot be interrupted right now"
    return f"{doing}; waiting {timeout_seconds:g} seconds at most; press Ctrl-C again to end it at once"


def running(journal: bytes) -> str | None:
    """The case that is running, according to the last complete line of a journal.

    >>> running(b'{"began": "single"}\\n{"beg'), running(b'{"began": "single"}\\n{"stopped": true}\\n')
    ('single', None)
    """
    lines = journal[: journal.rfind(b"\n") + 1].splitlines()
    return json.loads(lines[-1]).get("began") if lines else None
