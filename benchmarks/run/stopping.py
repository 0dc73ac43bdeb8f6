"""Signals that stop the measuring process: the first one stops the run in order, the second one at once."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.commandline.ending import INTERRUPTED

FORWARDED = signal.SIGUSR1
"""The signal that the supervisor sends when it is told to stop."""
STOP_SIGNALS = signal.SIGINT, signal.SIGTERM, FORWARDED


class StopSignals:
    """Counts how often this process was told to stop.

    A terminal or a job scheduler may signal both this process and its supervisor, which forwards the signal. So the
    number of stops is the number of signals of the most frequent kind, not of all signals.

    Attributes:
        count: number of stops so far.
        writing: whether the report is being written.
    """

    def __init__(self) -> None:
        self.count, self.writing = 0, False
        self._received: Counter[int] = Counter()

    def listen(self) -> None:
        """Install the handler for all stop signals."""
        for number in STOP_SIGNALS:
            signal.signal(number, self.handle)

    def handle(self, number: int, _: object) -> None:
        """Handle a signal.

        A second stop ends the process at once, unless the report is being written. Finished cases are in the journal.

        Raises:
            KeyboardInterrupt: at the first stop, and at the second if the report is being written.
        """
        self._received[number] += 1
        if max(self._received.values()) == self.count:
            return
        self.count += 1
        if self.count == 1 or (self.count == 2 and self.writing):
            raise KeyboardInterrupt
        if not self.writing:
            os._exit(INTERRUPTED)

    @contextmanager
    def while_writing(self) -> Iterator[None]:
        """Mark the body as writing the report, so that a second stop interrupts it in order."""
        self.writing = True
        try:
            yield
        finally:
            self.writing = False
