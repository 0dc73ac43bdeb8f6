"""Ctrl-C and its like in the process that measures: the first stops the run in an orderly way, the second at once."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.commandline.ending import INTERRUPTED

PASSED_ON = signal.SIGUSR1
"""What the supervisor sends when it is told to stop."""
NUMBERS = signal.SIGINT, signal.SIGTERM, PASSED_ON


class Stops:
    """How often this process was told to stop.

    A terminal, or whoever stops a job, may tell both this process and its supervisor, which passes it on. So signals of
    one kind are counted, not signals: as many stops as there were of the most frequent kind.
    """

    def __init__(self) -> None:
        self.count, self.writing = 0, False
        self._heard: Counter[int] = Counter()

    def listen(self) -> None:
        """Hear all signals that mean to stop, from now on."""
        for number in NUMBERS:
            signal.signal(number, self.hear)

    def hear(self, number: int, _: object) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: at the first stop, and at the second while the report is written. Else the second ends
                the process; the journal has what had ended.
        """
        self._heard[number] += 1
        if max(self._heard.values()) == self.count:
            return
        self.count += 1
        if self.count == 1 or (self.count == 2 and self.writing):
            raise KeyboardInterrupt
        if not self.writing:
            os._exit(INTERRUPTED)

    @contextmanager
    def while_writing(self) -> Iterator[None]:
        """Let the second stop end the writing of the report in an orderly way."""
        self.writing = True
        try:
            yield
        finally:
            self.writing = False
