"""How commands end: what they refuse, and clean exits without a traceback on Ctrl-C and on a closed output pipe."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import NoReturn

from benchmarks.cli.outputs import Unwritable
from benchmarks.cli.starting import resume_collection
from benchmarks.cli.statuses import BROKEN_INPUT, BROKEN_PIPE, INTERRUPTED
from strategies.schema import SchemaError


class Refused(ValueError):
    """What the options ask for is not possible. It ends a command with `WRONG_USAGE`, and the message in a line."""

    kind = ""
    """What the message begins with."""


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse what a ValueError in the body says is not possible, except files that cannot be read or written."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, Refused | Unwritable | SchemaError):
            raise
        raise Refused(str(error)) from error


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run the `main` of a command, whose imports are done, and exit with the code that it returns; None means 0.

    The exit code is 130 after Ctrl-C, 141 if the reader closed the output pipe, and 5 if stdout is closed, as by `>&-`,
    or its disk is full, or a result cannot be written. What stdout cannot encode, as names of files that are not UTF-8,
    is written with backslashes.
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
