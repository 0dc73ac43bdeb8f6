"""Functions that tests of the process pool run in worker processes."""

import os
import signal
import time


def double(number: int) -> int:
    """Return at once."""
    return 2 * number


def process_of(number: int) -> int:
    """The id of the process that runs this."""
    return os.getpid()


def die_elsewhere(process: int) -> str:
    """Be killed in any process but this one."""
    if os.getpid() != process:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def go(way: str) -> str:
    """End in the named way: return, raise, exit, be killed, or sleep for ten minutes."""
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "quits":
        os._exit(3)
    if way == "fails":
        raise ValueError("no such way")
    if way == "sleeps":
        time.sleep(600)
    return way
