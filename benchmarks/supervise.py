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

from benchmarks.watchdog import TIMED_OUT

JOURNAL = "MESHMARK_JOURNAL"
"""The variable by which a supervised process knows its journal."""
RESUMED = "MESHMARK_RESUMED"
"""Set for a process that goes on with the journal of one that died; says of what."""


def supervised() -> bool:
    """Whether this process has somebody to go on if it dies."""
    return JOURNAL in os.environ


def supervise(arguments: Sequence[str], journal: Path | None) -> int:
    """Run pytest until it has ended in an orderly way; its exit status.

    Args:
        arguments: of pytest.
        journal: where it is to be; without one it is a temporary file.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = journal or Path(folder, "journal.jsonl")
        environment = os.environ | {JOURNAL: str(path)}
        before = 0
        while True:
            status = run([sys.executable, "-m", "pytest", *arguments], environment)
            written = path.read_bytes() if path.exists() else b""
            orderly = b'"began"' not in written[before:] or written.endswith(b'{"stopped": true}\n')
            before = len(written)
            if orderly or -status in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                return 128 - status if status < 0 else status
            death = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            death = "a case that timed out" if status == TIMED_OUT else death
            print(f"\nthe benchmarks ended by {death}; going on with the cases that are left", file=sys.stderr)
            environment |= {RESUMED: death}


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command to its end, whatever is pressed meanwhile: a terminal sends Ctrl-C to it too, and it will end."""
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: object) -> None:
        if process:
            process.send_signal(number)

    # A handler, not SIG_IGN: the command would inherit that.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, forward)
    try:
        process = subprocess.Popen(command, env=environment)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
