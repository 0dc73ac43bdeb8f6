"""The heartbeat of the process that measures, through a pipe to its supervisor.

A case that hangs while it holds the interpreter's lock stops every thread of its process, its watchdog too. Its beats
stop with them, and the supervisor ends the process. So it does with a process that has told its exit status and hangs
while Python or JAX shuts down.
"""

import os
import select
import threading
import time
from contextlib import suppress

HEARTBEAT = "MESHMARK_HEARTBEAT"
"""The variable by which a supervised process knows the file descriptor to write to."""
BEAT, LAST = b".", b"!"
"""A byte is sent for each beat; after the last beat, `LAST` and the exit status."""
BEAT_SECONDS = 0.5


class Heart:
    """Beats in a thread of its own, if somebody listens, from now until `rest`."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(HEARTBEAT, None)  # not for processes that this one starts
        self._over, self._status = threading.Event(), 0
        if descriptor is not None:
            threading.Thread(target=self._beat, args=(int(descriptor),), daemon=True).start()

    def rest(self, status: int) -> None:
        """Stop beating, and tell the supervisor the exit status: only the shutdown of Python and JAX is left."""
        self._status = status
        self._over.set()

    def _beat(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        with suppress(OSError):  # the supervisor is gone
            while not self._over.is_set():
                with suppress(BlockingIOError):  # it is stopped, and the pipe is full
                    os.write(descriptor, BEAT)
                self._over.wait(BEAT_SECONDS)
            os.write(descriptor, LAST + bytes([self._status]))


class Listener:
    """The supervisor's end of the pipe.

    Attributes:
        descriptor: the other end, for the process that beats.
        silent_seconds: since the last beat; 0 before the first. Time in which this process was stopped (Ctrl-Z) does
            not count: the other may have been, too.
        status: the exit status that the other has told; None before its last beat.
    """

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        self._heard, self.silent_seconds = False, 0.0
        self.status: int | None = None

    def listen(self, seconds: float) -> None:
        """Wait for a beat, so long at most."""
        start = time.monotonic()
        ready = select.select([self._read], [], [], seconds)[0]
        if ready and (beats := os.read(self._read, 2**16)):
            self._heard, self.silent_seconds = True, 0.0
            if last := beats.partition(LAST)[2]:
                self.status = last[0]
            return
        if ready:  # the process has ended
            time.sleep(min(seconds, 0.01))
        if self._heard:
            self.silent_seconds += min(time.monotonic() - start, 2 * seconds)

    def started(self) -> None:
        """The other process has its end: close this one's copy of it."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Listen no more."""
        os.close(self._read)
