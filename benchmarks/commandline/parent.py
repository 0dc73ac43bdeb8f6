"""Processes that end with the process that started them, however that ends: also by SIGKILL, which it cannot handle."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

PARENT = "MESHMARK_PARENT"
"""Environment variable with the id of the process with which a started process ends."""
WATCH_SECONDS = 0.25


def bound() -> dict[str, str]:
    """Environment variables that make a started process end with this one."""
    return {PARENT: str(os.getpid())}


@contextmanager
def binding() -> Iterator[None]:
    """Processes that the main thread starts in the body end with this one."""
    os.environ |= bound()
    try:
        yield
    finally:
        del os.environ[PARENT]


def killed_with_parent() -> Callable[[], object] | None:
    """A function that lets the kernel kill the calling process with its parent, before it has imported anything.

    None where the system is not Linux, whose prctl(2) has PR_SET_PDEATHSIG. For `preexec_fn` of `subprocess.Popen`.
    """
    if sys.platform != "linux":
        return None
    import ctypes  # only here, because every command imports this module

    return partial(ctypes.CDLL(None).prctl, 1, signal.SIGKILL)


def end_with_parent() -> None:
    """End this process when its parent ends, if the environment says so. Called when `benchmarks` is imported."""
    if not (parent := os.environ.pop(PARENT, "")):
        return
    if kill_with_parent := killed_with_parent():  # also while a thread holds the GIL
        kill_with_parent()
    threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    """Exit when the parent is another process: an orphan is adopted."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
