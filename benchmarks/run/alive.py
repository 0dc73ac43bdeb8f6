"""Says every few seconds what long work is doing, so that nobody takes it for hung."""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from benchmarks.cli.tables import minutes

SILENT_SECONDS = 15.0
"""Longest time without a line."""


class Alive:
    """A context in which a line is written every few seconds: what is done, for how long, and what is left.

    The lines go to the standard error of the process as it is when this object is made, even if it is captured later.
    """

    def __init__(self, doing: Callable[[], str], every_seconds: float = SILENT_SECONDS) -> None:
        """Say what `doing` returns, with the time since it was first seen to; nothing where it returns ""."""
        self.doing, self.every_seconds = doing, every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: int | None = None
        try:
            self._error = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
        except OSError:  # closed: there is nobody to tell
            return

    def __enter__(self) -> "Alive":
        """Start to say it."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop saying it."""
        self.close()

    def close(self) -> None:
        """Stop saying it. It may be called several times, and where nothing was started."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            os.close(self._error)
            self._error = None

    def _run(self) -> None:
        before, begin = self.doing(), time.monotonic()
        while not self._ended.wait(self.every_seconds):
            text = self.doing()
            if text == before and text:
                self._write(f"{text}, {minutes(time.monotonic() - begin)} so far\n")
            elif text:
                self._write(f"{text}\n")  # it began some time after the line before
                begin = time.monotonic()
            before = text

    def _write(self, line: str) -> None:
        if self._error is not None:
            try:
                os.write(self._error, line.encode())
            except OSError:  # the reader has gone, which the work itself reports
                self._ended.set()
