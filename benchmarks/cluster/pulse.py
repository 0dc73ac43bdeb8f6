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
LEFT = "left"
"""The last sign of one that ends without them, when it has said why, or has heard why."""
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

        The first listens to all, and tells them. Its service ends with it, and JAX aborts whoever still runs: it waits
        until the others have given their last signs, `lost_after_seconds` at most. Then it has two beats to come to an
        end of its own, as when all were told to stop.
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
                self.leave()
                self._wait_for_others(heard)
                if self.index > 0 or not self.over.wait(2 * beat_seconds):
                    os._exit(LOST)
                return
            if self.over.wait(beat_seconds):
                return self._end(heard)

    def leave(self) -> None:
        """Say that this process has nothing more to do but to end, without the others."""
        with suppress(jax.errors.JaxRuntimeError):  # nobody hears it
            self._show(LEFT)

    def _end(self, heard: dict[int, tuple[str, float]]) -> None:
        """Say whether this process ends with the others, or else why it does not, which they have time to hear."""
        with suppress(jax.errors.JaxRuntimeError):
            if self.finished:
                return self._show(FINISHED)
            self._tell(self.why or f"{self._name(self.index)} ended before the others")
            self._wait_for_others(heard)

    def _wait_for_others(self, heard: dict[int, tuple[str, float]]) -> None:
        """If this is the first, wait until the others have given their last signs, but for those not heard of."""
        start, beat_seconds = time.monotonic(), self.lost_after_seconds / BEATS
        alive = [index for index, (_, when) in heard.items() if index and start - when < self.lost_after_seconds]
        with suppress(jax.errors.JaxRuntimeError):
            while self.index == 0 and time.monotonic() - start < self.lost_after_seconds:
                last = dict(self.client.key_value_dir_get(SIGNS))
                if all(last.get(f"{SIGNS}/{index}") in (FINISHED, LEFT) for index in alive):
                    return time.sleep(2 * beat_seconds)  # for them to end
                time.sleep(beat_seconds)

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
