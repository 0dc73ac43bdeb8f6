"""Values of arguments: numbers within ranges, in ASCII digits."""

import argparse
import re
import reprlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 2**63 - 1
"""Largest whole number of an argument: it fits into 64 bits."""
MOST_AMOUNT = 1e30
MOST_SECONDS = 1e8
"""Three years. Timers of the operating system take no more than some ten times as many."""
MOST_WORKERS = 256
DECIMAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def shown(text: str) -> str:
    """An argument as a message shows it: quoted, and without its middle if it is long."""
    return reprlib.repr(text)


def _whole(text: str, what: str, least: int, most: int = MOST) -> int:
    """Parse ASCII digits. `str.isdecimal` is true of other digits, too."""
    if not re.fullmatch(r"[0-9]{1,4000}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not {what}; give a whole number of at least {least}")
    if int(text) > most:
        raise argparse.ArgumentTypeError(f"{shown(text)} is too large; give at most {most:,}")
    return int(text)


def count(text: str) -> int:
    """Parse a whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    return _whole(text, "a count", 1)


def whole(text: str) -> int:
    """Parse a whole number of at least 0.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    return _whole(text, "a number", 0)


def workers(text: str) -> int:
    """Parse a number of processes.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    return _whole(text, "a count", 1, MOST_WORKERS)


def positive(text: str) -> float:
    """Parse a number above 0.

    >>> positive("1.4e12")
    1400000000000.0

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    return _decimal(text, "a positive number; give one such as 2.5", MOST_AMOUNT)


def amount(text: str) -> float:
    """Parse a number of at least 0.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    if DECIMAL.fullmatch(text) and float(text) == 0:
        return 0.0
    return _decimal(text, "a number of at least 0; give one such as 2.5", MOST_AMOUNT)


def seconds(text: str) -> float:
    """Parse a positive number of seconds.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    return _decimal(text, "a time; give a positive number of seconds, such as 2.5", MOST_SECONDS)


def _decimal(text: str, what: str, most: float) -> float:
    if not DECIMAL.fullmatch(text) or not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not {what}")
    if float(text) > most:
        raise argparse.ArgumentTypeError(f"{shown(text)} is too large; give at most {most:g}")
    return float(text)


def commas(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A parser of comma-separated lists.

    >>> commas(count)("8,16")
    [8, 16]
    """

    @wraps(read)
    def read_all(text: str) -> Any:
        return [read(part) for part in text.split(",")]

    return read_all
