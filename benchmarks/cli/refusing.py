"""How commands end when something that was asked for is not possible, or a file cannot be read or written."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.commandline.ending import BROKEN_INPUT, WRONG_USAGE
from benchmarks.commandline.outputs import Unwritable
from strategies.names import UnknownName
from strategies.schema import SchemaError


@contextmanager
def refusing(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the command with one line if the body raises a ValueError, or names what is not there.

    The exit code is 5 for a file that cannot be read or written, and 2 for anything else that was asked for.
    """
    try:
        yield
    except (SchemaError, Unwritable) as error:
        parser.exit(BROKEN_INPUT, f"{parser.prog}: {error}\n")
    except (ValueError, UnknownName) as error:
        parser.exit(WRONG_USAGE, f"{parser.prog}: {error}\n")
