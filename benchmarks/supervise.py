"""Runs `pytest benchmarks` in a process of its own, and another where that one dies: the sweep goes on without the
case that killed it.

A backend that aborts, the system's answer to too little memory and a collective that hangs all end the process that
they happen in. The journal holds what was measured until then.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.journal import STOPPED
from benchmarks.pulse import LOST
from benchmarks.watchdog import TIMED_OUT

JOURNAL = "MESHMARK_JOURNAL"
"""The variable by which a supervised process knows its journal."""
RESUMED = "MESHMARK_RESUMED"
"""Set for a process that goes on with the journal of one that died; says of what."""

CTRL_C = 130
"""The exit status of a command that Ctrl-C ended, or whoever stops a job: 128 and the signal's number."""
UNWRITTEN = 74
"""The exit status of a process that could not write what it had measured (`EX_IOERR` of sysexits.h)."""


def supervised() -> bool:
    """Whether this process has somebody to go on if it dies."""
    return JOURNAL in os.environ


def supervise(arguments: Sequence[str], journal: Path | None, *, alone: bool = True) -> int:
    """Run pytest until it has ended in an orderly way; its exit status.

    Args:
        arguments: of pytest.
        journal: where it is to be; without one it is a temporary file.
        alone: nobody else takes part. Of several processes one that dies ends all.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = journal or Path(folder, "journal.jsonl")
        environment = os.environ | {JOURNAL: str(path)}
        while True:
            before = content(path)
            status, told = run([sys.executable, "-m", "pytest", *arguments], environment)
            written = content(path).removeprefix(before)
            if told and status in (TIMED_OUT, LOST):
                return CTRL_C  # it hung, and could not hear, or others heard before
            if told or ended(status, written):
                return 128 - status if status < 0 else status
            death = death_of(status)
            if not alone:
                kept = f"; {journal} has the rows that had ended, for --resume" if journal else ""
                print(f"\nthe benchmarks ended by {death}, and in all other processes with it{kept}", file=sys.stderr)
                return 128 - status if status < 0 else status
            print(f"\nthe benchmarks ended by {death}; going on with the cases that are left", file=sys.stderr)
            environment |= {RESUMED: death}


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
        return "a case that timed out"
    if status == LOST:
        return "the loss of another process"
    if status == -signal.SIGKILL:
        return "SIGKILL, of which too little memory is the usual cause"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, bool]:
    """Run a command to its end, whatever is pressed meanwhile; its exit status, and whether it was told to stop.

    A terminal sends Ctrl-C to it too; SIGTERM, which stops this process alone, is passed on.
    """
    told: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def hear(number: int, _: object) -> None:
        told.append(number)
        if process and number == signal.SIGTERM:
            process.send_signal(number)

    # A handler, not SIG_IGN: the command would inherit that.
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        process = subprocess.Popen(command, env=environment)
        if signal.SIGTERM in told:  # before there was anybody to pass it on to
            process.terminate()
        return process.wait(), bool(told)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_once(number: int, _: object) -> None:
    """Handle a signal as Ctrl-C, once: who stops a job may tell this process, and the one that passes it on, too.

    Raises:
        KeyboardInterrupt: always.
    """
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
