"""How commands end: they write what they made, or say why their input or output cannot be used."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.main import WRONG_USAGE
from benchmarks.commandline.outputs import Unwritable, require_apart, require_file, save_text
from results.records.reading import NotComparable, RecordError

Content = TypeVar("Content")


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


def write_output(
    parser: argparse.ArgumentParser,
    make: Callable[[], Content],
    out: Path,
    inputs: Iterable[Path] = (),
    *,
    name: str = "--out",
    way_out: str = "",
    check: Callable[[Path], None] = require_file,
    write: Callable[[Path, Content], object] = save_text,
) -> None:
    """Run a command that writes one file, and print its path. What cannot be used ends the command.

    Args:
        parser: of the command.
        make: reads the input and returns the content; may raise `RecordError`.
        out: the file to write.
        inputs: the files that `make` reads; none of them is overwritten.
        name: names the file in messages.
        way_out: says which command writes the input.
        check: raises `Unwritable` if the file cannot be written.
        write: writes the content; by default a text.
    """
    with refusing(parser, way_out):
        require_apart({name: out}, inputs)
        check(out)
        write(out, make())
    print(out)


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
