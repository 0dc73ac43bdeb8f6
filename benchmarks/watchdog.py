"""A watchdog: a case that gets nowhere must not keep the others from being measured."""

import os
import threading
import time
from collections.abc import Callable

TIMED_OUT = 75
"""The exit status of a process that its watchdog ended: a temporary failure (`EX_TEMPFAIL` of sysexits.h)."""


class Watchdog:
    """Ends the process when nothing was heard for too long: a collective that hangs cannot be ended otherwise.

    `last_words` is called, from another thread, with what was going on and for how many seconds.
    """

    def __init__(self, timeout_seconds: float, last_words: Callable[[str, float], None]) -> None:
        self.timeout_seconds, self._last_words = timeout_seconds, last_words
        self._heard: tuple[str, float] | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self, case: str) -> None:
        """A case goes on."""
        self._heard = case, time.monotonic()

    def rest(self) -> None:
        """No case runs now."""
        self._heard = None

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self.timeout_seconds / 4))
            heard = self._heard
            if heard and time.monotonic() - heard[1] > self.timeout_seconds:
                try:
                    self._last_words(heard[0], self.timeout_seconds)
                finally:
                    os._exit(TIMED_OUT)
