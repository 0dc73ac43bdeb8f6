"""Signs of life of several processes: where one of them is gone all others say so, and end.

They may hang by then, waiting for it, in a collective of the devices that nothing else ends. The signs are kept by the
service that `jax.distributed.initialize` starts in the first process. Should that one be killed, the service is gone
with it, and JAX aborts the others before they can say a word.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jax

from benchmarks.statuses import LOST

SIGNS, GONE = "meshmark-pulses", "meshmark-gone"
FINISHED = "finished"
"""The last sign of a process that ends with the others."""
BEATS = 5
"""So many signs are missed of a process that is lost."""


@dataclass
class Pulse:
    """The pulse of one process.

    Attributes:
        client: of the service.
        lost_after_seconds: who has not been heard of for so long is gone.
        say: how it is said, in a thread of its own.
        finished: whether this process has come to the end of what all do together.
        why: it ends without.
        over: it ends, and is ended by nobody any more.
    """

    client: Any
    index: int
    count: int
    lost_after_seconds: float
    say: Callable[[str], None]
    finished: bool = False
    why: str | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def beat(self) -> None:
        """Show the others that this process is there, and end it where one of them is gone.

        The first listens to all, and tells them. Its service ends with it: they have two beats to hear of it, in which
        this process may come to an end of its own, as when all were told to stop.
        """
        heard: dict[int, tuple[str, float]] = dict.fromkeys(range(self.count), ("", time.monotonic()))
        beat_seconds = self.lost_after_seconds / BEATS
        for number in itertools.count():
            try:
                self._show(str(number))
                gone = self._gone(heard)
            except jax.errors.JaxRuntimeError:
                gone = f"{self._name(0)} cannot be reached"
            if gone:
                self.say(gone)
                if self.index > 0 or not self.over.wait(2 * beat_seconds):
                    os._exit(LOST)
            if self.over.wait(beat_seconds):
                return self._leave(2 * beat_seconds)

    def _leave(self, seconds: float) -> None:
        """Give a last sign. If this process ends before the others it tells them, and they have `seconds` to hear."""
        with suppress(jax.errors.JaxRuntimeError):  # nobody hears it
            if self.finished:
                return self._show(FINISHED)
            self._tell(self.why or f"{self._name(self.index)} ended before the others")
            if self.index == 0:
                time.sleep(seconds)

    def _gone(self, heard: dict[int, tuple[str, float]]) -> str | None:
        """Who is gone, and how. `heard` is what the first has heard last of each, and when that was new."""
        if self.index == 0:
            now = time.monotonic()
            for key, sign in self.client.key_value_dir_get(SIGNS):
                index = int(key.rpartition("/")[2])
                if sign == FINISHED or sign != heard[index][0]:
                    heard[index] = sign, now
            if silent := [index for index, (_, when) in heard.items() if now - when > self.lost_after_seconds]:
                since = f"has not been heard of for {self.lost_after_seconds:g} seconds"
                self._tell(f"{self._name(silent[0])} {since}: it died, or cannot be reached")
        return self._told()

    def _show(self, sign: str) -> None:
        self.client.key_value_set(f"{SIGNS}/{self.index}", sign, allow_overwrite=True)

    def _tell(self, gone: str) -> None:
        """Tell all who is gone, unless it is known: who is gone first may be why others are."""
        if not self._told():
            self.client.key_value_set(f"{GONE}/why", gone, allow_overwrite=True)

    def _told(self) -> str | None:
        return next((gone for _, gone in self.client.key_value_dir_get(GONE)), None)

    def _name(self, index: int) -> str:
        return f"process {index} of {self.count}"
