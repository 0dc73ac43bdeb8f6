"""Ctrl-C and SIGTERM while a run trains: the first one stops it after the step, the second one at once."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cli.statuses import INTERRUPTED

STOP_SIGNALS = signal.SIGINT, signal.SIGTERM


class Stopping:
    """Whether this process was told to stop."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals while the body runs. A signal that is ignored, as under `nohup`, stays so."""
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self.asked:
            os.write(sys.stderr.fileno(), b"\nended at once; continue from the latest checkpoint with --resume\n")
            os._exit(INTERRUPTED)
        self.asked = True
        # A handler may run in the middle of a `print`, which cannot be entered again.
        os.write(sys.stderr.fileno(), b"\nstopping: saving a checkpoint first; Ctrl-C again ends at once\n")
