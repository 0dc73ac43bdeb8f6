"""How commands start: JAX's environment is checked, Ctrl-C is quiet, and imports of large libraries are fast.

A process that another one started ends with it, however that ends: also by SIGKILL, which it cannot handle.
"""

import gc
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

from benchmarks.cli.statuses import WRONG_USAGE

MOST_VIRTUAL_DEVICES = 65_536
DEVICES = "JAX_NUM_CPU_DEVICES"
PYTEST_OPTIONS = "PYTEST_ADDOPTS"
UNUSABLE = {
    "JAX_ENABLE_X64": "steps are compiled for 32 bits, and their states would have 64",
    "JAX_DISABLE_JIT": "steps must be compiled",
}
"""Switches of JAX with which no step runs as it is described, and why."""

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


def start_forked(parent: int) -> None:
    """Start a process that this program has forked: it ends with its parent, which handles Ctrl-C and SIGTERM.

    It lives for seconds, so garbage is not collected.
    """
    gc.disable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ[PARENT] = str(parent)
    end_with_parent()


def _watch(parent: int) -> None:
    """Exit when the parent is another process: an orphan is adopted."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def environment_problem() -> str:
    """What is wrong with the environment, in one line; empty if nothing is."""
    value = os.environ.get(DEVICES)
    if value is None or (re.fullmatch(r"[0-9]{1,9}", value) and 1 <= int(value) <= MOST_VIRTUAL_DEVICES):
        return ""
    allowed = f"use a whole number from 1 to {MOST_VIRTUAL_DEVICES:,}, or unset it"
    return f"{DEVICES}={value[:100]!r} is not a number of devices; {allowed}"


def folder_problem() -> str:
    """That the working directory is gone, as of a job whose folder was removed; empty if it exists."""
    try:
        Path.cwd()
    except OSError as error:
        return f"the working directory cannot be found ({error.strerror}); change to another folder"
    return ""


def pytest_problem() -> str:
    """What is wrong with the options that pytest reads from the environment; empty if nothing is."""
    import shlex  # only here: most commands do not start pytest

    try:
        shlex.split(os.environ.get(PYTEST_OPTIONS, ""))
    except ValueError as error:
        return f"{PYTEST_OPTIONS}={os.environ[PYTEST_OPTIONS][:100]!r} cannot be read: {error}; correct it, or unset it"
    return ""


def steps_problem() -> str:
    """Which of JAX's settings in the environment is not for training steps, in one line; empty if none is.

    >>> steps_problem()
    ''
    """
    for name, effect in UNUSABLE.items():
        if os.environ.get(name, "").lower() in ("y", "yes", "t", "true", "on", "1"):
            return f"{name}={os.environ[name]}: {effect}; unset it"
    return ""


def resume_collection() -> None:
    """Collect garbage again if it was paused. What was imported lives as long as the process, and is never scanned.

    Scanning it again and again takes a fifth of the CPU time of a start. What is garbage now is never freed.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def quiet_while_importing() -> None:
    """Let Ctrl-C end the process at once, without a traceback, while `meshmark` or `python -m` imports a command.

    Importing a command can take seconds; pausing garbage collection shortens it. `python -m` keeps "-m" in
    `sys.argv[0]` until it has imported the command's package (CPython, Lib/runpy.py). Nothing is changed if another
    program imports the package. The signal handler is left alone if Ctrl-C is ignored, as under `nohup`.
    """
    ours = sys.argv[:1] == ["-m"] or Path(*sys.argv[:1]).stem == "meshmark"
    if ours and (problem := folder_problem() or environment_problem()):
        print(f"meshmark: error: {problem}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
    if ours:
        open_closed_streams()
        gc.disable()  # until `resume_collection`
    in_main_thread = threading.current_thread() is threading.main_thread()
    if ours and in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def open_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`) by the null device, before files take their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest that is free is its own
