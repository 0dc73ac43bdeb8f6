"""How a command ends: with its exit code, and without a traceback when it is interrupted or nobody reads on."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130
"""After Ctrl-C: 128 and the number of SIGINT, as shells say it."""
BROKEN_PIPE = 141
"""When nobody reads the output any more, as after `| head`: 128 and the number of SIGPIPE."""
BROKEN_INPUT = 5
"""A file cannot be read, or a result cannot be written."""


def quiet_while_importing() -> None:
    """Have Ctrl-C end the process at once while `meshmark` or `python -m` imports a command: that takes seconds.

    `python -m` keeps "-m" in `sys.argv[0]` until it has imported the command's package (CPython, Lib/runpy.py). The
    handler stays as it is where another program imports the package, or where Ctrl-C is ignored, as under `nohup`.
    """
    ours = sys.argv[:1] == ["-m"] or Path(*sys.argv[:1]).stem == "meshmark"
    in_main_thread = threading.current_thread() is threading.main_thread()
    if ours and in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run the `main` of a command, and end the process with its exit code; 0 for None.

    It is 130 after Ctrl-C, 141 if nobody reads the output, and 5 if there is no room for it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # the imports are done
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            code = main() or 0
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = BROKEN_PIPE
        discard_output()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        code = BROKEN_INPUT
        discard_output()
        print(f"the output cannot be written: {error.strerror}; make room, or send it elsewhere", file=sys.stderr)
    finally:  # nothing is left to clean up: no traceback of how Python ends
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def discard_output() -> None:
    """Write the rest of stdout nowhere, or Python fails once more when it flushes it at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
