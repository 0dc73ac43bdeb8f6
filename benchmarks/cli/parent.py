"""Processes that end with the process that started them, however that ends: also by SIGKILL, which it cannot handle."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PARENT = "MESHMARK_PARENT"
"""Environment variable with the id of the process with which a started process ends."""
WATCH_SECONDS = 0.25


def bound() -> dict[str, str]:
    """Environment variables that make a started process end with this one."""
    return {PARENT: str(os.getpid())}


def end_with_parent() -> None:
    """End this process when its parent ends, if the environment says so. Called when `benchmarks` is imported."""
    parent = os.environ.pop(PARENT, "")
    if not parent.isdecimal():  # nobody started it so, or it was set by hand
        return
    if sys.platform == "linux":  # prctl(2) PR_SET_PDEATHSIG ends it also while a thread holds the GIL
        import ctypes  # only here, because every command imports this module

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    """Exit when the parent is another process: an orphan is adopted."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


@contextmanager
def ignoring_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Processes started in the body ignore these signals, which a terminal or a job scheduler sends to all processes.

    Nothing is changed outside the main thread, where handlers cannot be set.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
