"""How commands end when their input or output cannot be used."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.main import WRONG_USAGE
from benchmarks.commandline.outputs import Unwritable
from results.gates.verdict import NotComparable
from results.records.reading import RecordError


@contextmanager
def refusing(parser: argparse.ArgumentParser, way_out: str = "") -> Iterator[None]:
    """End the command with a line if the body cannot read its input or write its output.

    The exit code is `BROKEN_INPUT`, or `WRONG_USAGE` if runs are not comparable.

    Args:
        parser: of the command.
        way_out: says which command writes what the body reads.
    """
    try:
        yield
    except NotComparable as error:
        parser.exit(WRONG_USAGE, f"not comparable: {error}")
    except Unwritable as error:
        parser.exit(BROKEN_INPUT, str(error))
    except RecordError as error:
        parser.exit(BROKEN_INPUT, "; ".join(filter(None, (str(error), way_out))))


def read_stdin() -> str:
    """Return the text on stdin.

    Raises:
        RecordError: stdin is closed, a terminal, or no text.
    """
    if sys.stdin is None:
        raise RecordError("stdin is closed")
    if sys.stdin.isatty():
        raise RecordError("stdin is the terminal, not the output of a command")
    try:
        return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"stdin is not text ({error})") from error
