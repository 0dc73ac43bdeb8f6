"""Heartbeat from the measuring process to its supervisor, through a pipe.

A case that hangs while holding the GIL stops every thread of its process, including the watchdog's. Its heartbeat stops
too, and the supervisor then kills the process. The same covers a process that has reported its exit status and hangs
while Python or JAX shuts down.
"""

import os
import select
import threading
import time
from contextlib import suppress

HEARTBEAT = "MESHMARK_HEARTBEAT"
"""Environment variable with the file descriptor that a supervised process writes its heartbeat to."""
BEAT, LAST = b".", b"!"
"""`BEAT` is the byte of one heartbeat. After the last one comes `LAST`, then a byte with the exit status."""
BEAT_SECONDS = 0.5


class HeartbeatSender:
    """Sends heartbeats from a thread, if a supervisor listens, from construction until `stop`."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(HEARTBEAT, None)  # child processes must not inherit it
        self._stopped, self._status = threading.Event(), 0
        if descriptor is not None:
            threading.Thread(target=self._beat, args=(int(descriptor),), daemon=True).start()

    def stop(self, status: int) -> None:
        """Stop the heartbeat and report the exit status. Only Python's and JAX's shutdown may follow."""
        self._status = status
        self._stopped.set()

    def _beat(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        with suppress(OSError):  # the supervisor has exited
            while not self._stopped.is_set():
                with suppress(BlockingIOError):  # the supervisor is suspended, and the pipe is full
                    os.write(descriptor, BEAT)
                self._stopped.wait(BEAT_SECONDS)
            os.write(descriptor, LAST + bytes([self._status]))


class HeartbeatListener:
    """The supervisor's end of the pipe.

    Attributes:
        descriptor: write end, to be inherited by the process that sends heartbeats.
        silent_seconds: time since the last heartbeat; 0 before the first one. Time during which this process was
            suspended (Ctrl-Z) does not count, because the sender may have been suspended with it.
        status: exit status that the sender reported; None before its last heartbeat.
    """

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        self._heard, self.silent_seconds = False, 0.0
        self.status: int | None = None

    def listen(self, seconds: float) -> None:
        """Wait at most `seconds` for a heartbeat."""
        start = time.monotonic()
        ready = select.select([self._read], [], [], seconds)[0]
        if ready and (beats := os.read(self._read, 2**16)):
            self._heard, self.silent_seconds = True, 0.0
            if last := beats.partition(LAST)[2]:
                self.status = last[0]
            return
        if ready:  # end of file: the process has exited
            time.sleep(min(seconds, 0.01))
        if self._heard:
            self.silent_seconds += min(time.monotonic() - start, 2 * seconds)

    def started(self) -> None:
        """Close this process's copy of the write end. Call it once the sender has inherited that end."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Close the read end."""
        os.close(self._read)
