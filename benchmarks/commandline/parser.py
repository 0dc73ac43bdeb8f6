"""The parser of all commands. It reports what it cannot parse in one line."""

import argparse
from typing import NoReturn

from benchmarks.commandline.main import WRONG_USAGE


class Parser(argparse.ArgumentParser):
    """A parser that names what is wrong and `--help`, without lines of usage before it."""

    def error(self, message: str) -> NoReturn:
        """End the command with 2."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message}; see --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the command, with one line on stderr if there is a message."""
        super().exit(status, f"{one_line(message)}\n" if message else None)


def one_line(text: str) -> str:
    """Convert any text to one line of printable characters.

    >>> one_line("out of memory\\n\\x1b[31m12 GiB")
    'out of memory \ufffd[31m12 GiB'
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
