"""Watchdog: ends the process if a case makes no progress, so that the other cases can still be measured."""

import os
import threading
import time
from collections.abc import Callable

from benchmarks.commandline.statuses import TIMED_OUT


class Watchdog:
    """Ends the process after a time without progress, because a hanging collective cannot be interrupted.

    Its thread cannot run while another one holds the GIL. Such hangs are ended by the supervisor (`heartbeat.py`).

    Args:
        timeout_seconds: time without progress.
        on_timeout: called from the watchdog's thread with the case, just before the process ends.
    """

    def __init__(self, timeout_seconds: float, on_timeout: Callable[[str], None]) -> None:
        self.timeout_seconds, self._on_timeout = timeout_seconds, on_timeout
        self._last_beat: tuple[str, float] | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self, case: str) -> None:
        """A case makes progress."""
        self._last_beat = case, time.monotonic()

    def pause(self) -> None:
        """No case is running."""
        self._last_beat = None

    def stop(self) -> None:
        """Stop watching, and end the thread."""
        self.pause()
        self._stopped.set()

    def _watch(self) -> None:
        tick = min(1.0, self.timeout_seconds / 4)
        checked, seen, silent = time.monotonic(), self._last_beat, 0.0
        while not self._stopped.wait(tick):
            before, checked = checked, time.monotonic()
            # Only observed seconds count: a suspended process (Ctrl-Z) does not hang.
            silent = silent + min(checked - before, 2 * tick) if self._last_beat is seen else 0.0
            seen = self._last_beat
            if seen and silent > self.timeout_seconds:
                try:
                    self._on_timeout(seen[0])
                finally:
                    os._exit(TIMED_OUT)
