"""A watchdog: a case that gets nowhere must not keep the others from being measured."""

import os
import threading
import time
from collections.abc import Callable

from benchmarks.statuses import TIMED_OUT


class Watchdog:
    """Ends the process when nothing was heard for too long: a collective that hangs cannot be ended otherwise.

    `last_words` is called, from another thread, with what was going on. Its thread cannot run
    while another holds the interpreter's lock: such a hang is ended from outside (`heartbeat.py`).
    """

    def __init__(self, timeout_seconds: float, last_words: Callable[[str], None]) -> None:
        self.timeout_seconds, self._last_words = timeout_seconds, last_words
        self._heard: tuple[str, float] | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self, case: str) -> None:
        """A case goes on."""
        self._heard = case, time.monotonic()

    def rest(self) -> None:
        """No case runs now."""
        self._heard = None

    def stop(self) -> None:
        """End nothing any more, and let the thread go: the session is over."""
        self.rest()
        self._stopped.set()

    def _watch(self) -> None:
        tick = min(1.0, self.timeout_seconds / 4)
        watched, heard, silent = time.monotonic(), self._heard, 0.0
        while not self._stopped.wait(tick):
            before, watched = watched, time.monotonic()
            # A process that was stopped (Ctrl-Z) has not hung meanwhile: only seconds that were watched count.
            silent = silent + min(watched - before, 2 * tick) if self._heard is heard else 0.0
            heard = self._heard
            if heard and silent > self.timeout_seconds:
                try:
                    self._last_words(heard[0])
                finally:
                    os._exit(TIMED_OUT)
