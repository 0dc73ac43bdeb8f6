"""Heartbeats between processes: when one of them is lost, all others report it and exit.

The others may by then hang in a device collective, which nothing else can end. Heartbeats are stored in the key-value
service that `jax.distributed.initialize` starts in process 0. If process 0 is killed, the service is gone with it, and
JAX aborts the other processes before they can report anything.
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

from benchmarks.cli.statuses import PEER_LOST

BEAT_KEYS, REASON_KEYS = "meshmark-pulses", "meshmark-gone"
FINISHED = "finished"
"""Last heartbeat of a process that ends in order, together with the others."""
LEFT = "left"
"""Last heartbeat of a process that ends early, after it has reported a reason or received one."""
BEATS = 5
"""Number of missed heartbeats after which a process counts as lost."""


@dataclass
class PeerHeartbeat:
    """Heartbeat of one process, and its view of the others. `say` is called from the heartbeat thread."""

    client: Any
    index: int
    count: int
    lost_after_seconds: float
    say: Callable[[str], object]
    finished: bool = False
    why: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when this process ends on its own; the heartbeat thread must not end it any more."""

    def beat(self) -> None:
        """Send heartbeats until the process ends, and exit when another process is lost.

        Process 0 watches all processes and tells the others. The service ends with process 0, and JAX then aborts
        whoever still runs. So process 0 waits until the others have sent their last heartbeat, `lost_after_seconds` at
        most. It then has two more beats to end on its own, for example when all processes were told to stop.
        """
        last_beats: dict[int, tuple[str, float]] = dict.fromkeys(range(self.count), ("", time.monotonic()))
        beat_seconds = self.lost_after_seconds / BEATS
        for number in itertools.count():
            try:
                self._send(str(number))
                reason = self._find_lost(last_beats)
            except jax.errors.JaxRuntimeError:
                reason = f"{self._name(0)} cannot be reached"
            if reason:
                self.say(reason)
                self.leave()
                self._wait_for_others(last_beats)
                if self.index > 0 or not self.over.wait(2 * beat_seconds):
                    os._exit(PEER_LOST)
                return
            if self.over.wait(beat_seconds):
                return self._end(last_beats)

    def leave(self) -> None:
        """Announce that this process is about to exit without the others."""
        with suppress(jax.errors.JaxRuntimeError):  # the service is gone
            self._send(LEFT)

    def _end(self, last_beats: dict[int, tuple[str, float]]) -> None:
        """Announce that this process ended in order, or else why not, and give the others time to read it."""
        with suppress(jax.errors.JaxRuntimeError):
            if self.finished:
                return self._send(FINISHED)
            self._publish_reason(self.why or f"{self._name(self.index)} ended before the others")
            self._wait_for_others(last_beats)

    def _wait_for_others(self, last_beats: dict[int, tuple[str, float]]) -> None:
        """In process 0, wait for the last heartbeats of all processes that were not silent before."""
        start, beat_seconds = time.monotonic(), self.lost_after_seconds / BEATS
        alive = [
            index for index, (_, changed) in last_beats.items() if index and start - changed < self.lost_after_seconds
        ]
        with suppress(jax.errors.JaxRuntimeError):
            while self.index == 0 and time.monotonic() - start < self.lost_after_seconds:
                last = dict(self.client.key_value_dir_get(BEAT_KEYS))
                if all(last.get(f"{BEAT_KEYS}/{index}") in (FINISHED, LEFT) for index in alive):
                    return time.sleep(2 * beat_seconds)  # time for them to exit
                time.sleep(beat_seconds)

    def _find_lost(self, last_beats: dict[int, tuple[str, float]]) -> str | None:
        """Describe the process that is lost, if any, by the last heartbeats that process 0 read and their times."""
        if self.index == 0:
            now = time.monotonic()
            for key, beat in self.client.key_value_dir_get(BEAT_KEYS):
                index = int(key.rpartition("/")[2])
                if beat == FINISHED or beat != last_beats[index][0]:
                    last_beats[index] = beat, now
            if silent := [
                index for index, (_, changed) in last_beats.items() if now - changed > self.lost_after_seconds
            ]:
                since = f"has sent no heartbeat for {self.lost_after_seconds:g} seconds"
                self._publish_reason(f"{self._name(silent[0])} {since}: it died, or cannot be reached")
        return self._published_reason()

    def _send(self, beat: str) -> None:
        self.client.key_value_set(f"{BEAT_KEYS}/{self.index}", beat, allow_overwrite=True)

    def _publish_reason(self, reason: str) -> None:
        """Publish why the run ends, unless a reason is known: the first loss may have caused the later ones."""
        if not self._published_reason():
            self.client.key_value_set(f"{REASON_KEYS}/why", reason, allow_overwrite=True)

    def _published_reason(self) -> str | None:
        return next((reason for _, reason in self.client.key_value_dir_get(REASON_KEYS)), None)

    def _name(self, index: int) -> str:
        return f"process {index} of {self.count}"
