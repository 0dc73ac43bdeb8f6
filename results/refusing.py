"""How commands that read stdin end when their input or output cannot be used."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.outputs import Unwritable
from results.records.reading import RecordError


@contextmanager
def refusing(parser: argparse.ArgumentParser, written_by: str) -> Iterator[None]:
    """End the command with `BROKEN_INPUT` and a line if the body cannot read stdin or write its output.

    Args:
        parser: of the command.
        written_by: says which command writes what the body reads.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        parser.exit(BROKEN_INPUT, f"stdin is not text ({error}); {written_by}\n")
    except (RecordError, Unwritable) as error:
        parser.exit(BROKEN_INPUT, f"{error}\n")
