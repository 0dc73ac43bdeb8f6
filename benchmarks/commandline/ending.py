"""Exit codes of commands, and clean exits without a traceback on Ctrl-C and on a closed output pipe."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from benchmarks.commandline.environment import environment_problem
from benchmarks.commandline.importing import pause_collection, resume_collection
from benchmarks.commandline.outputs import Unwritable
from strategies.schema import SchemaError

WRONG_USAGE = 2
"""Exit code when options, arguments or the environment cannot be used."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
BROKEN_PIPE = 141
"""Exit code when the reader of the output has closed the pipe, as `| head` does: 128 plus the number of SIGPIPE."""
BROKEN_INPUT = 5
"""Exit code when an input file cannot be read or a result cannot be written."""


class Refused(ValueError):
    """What the options ask for is not possible. It ends a command with `WRONG_USAGE`, and the message in a line.

    Attributes:
        kind: what the message begins with.
    """

    kind = ""


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse what a ValueError in the body says is not possible, except files that cannot be read or written.

    Raises:
        Refused: with the message of the error.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, Refused | Unwritable | SchemaError):
            raise
        raise Refused(str(error)) from error


def quiet_while_importing() -> None:
    """Let Ctrl-C end the process at once, without a traceback, while `meshmark` or `python -m` imports a command.

    Importing a command can take seconds; pausing garbage collection shortens it. `python -m` keeps "-m" in
    `sys.argv[0]` until it has imported the command's package (CPython, Lib/runpy.py). Nothing is changed if another
    program imports the package. The signal handler is left alone if Ctrl-C is ignored, as under `nohup`.
    """
    ours = sys.argv[:1] == ["-m"] or Path(*sys.argv[:1]).stem == "meshmark"
    if ours and (problem := environment_problem()):
        print(f"meshmark: error: {problem}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
    if ours:
        open_closed_streams()
        pause_collection()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if ours and in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def open_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`) by the null device, before files take their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest that is free is its own


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run the `main` of a command, whose imports are done, and exit with the code that it returns; None means 0.

    The exit code is 130 after Ctrl-C, 141 if the reader closed the output pipe, and 5 if stdout is closed, as by `>&-`,
    or its disk is full, or a result cannot be written. What stdout cannot encode, as names of files that are not UTF-8,
    is written with backslashes.

    Raises:
        SystemExit: always, with the exit code.
    """
    resume_collection()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.__stdout__ is None:  # what the command prints would be lost
        print("stdout is closed; redirect it, as to /dev/null", file=sys.stderr)
        sys.exit(BROKEN_INPUT)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            code = main() or 0
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Unwritable as error:
        code = BROKEN_INPUT
        print(error, file=sys.stderr)
    except BrokenPipeError:
        code = BROKEN_PIPE
        discard_output()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        code = BROKEN_INPUT
        discard_output()
        print(f"the output cannot be written: {error.strerror}; free space, or redirect the output", file=sys.stderr)
    finally:  # nothing is left to clean up; Ctrl-C during Python's shutdown prints no traceback
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def discard_output() -> None:
    """Redirect stdout to the null device, because Python would fail again when it flushes stdout at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
