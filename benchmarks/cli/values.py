"""Parsers of the values of options: from text to a value, or an `argparse.ArgumentTypeError` that says what to write.

None of them needs JAX. Names of strategies, of their options and of mesh axes stay strings here: `cases/selection.py`
checks them against the registry, which a user's own strategies extend.
"""

import argparse
import math
import re
import reprlib
import shutil
from pathlib import Path
from typing import NoReturn

from benchmarks.cli.outputs import NO_PICTURE, is_picture
from benchmarks.devices.topology import Topology

MOST = 2**63 - 1
"""Largest whole number of an argument: it fits into 64 bits."""
MOST_AMOUNT = 1e30
MOST_SECONDS = 1e8
"""Three years. Timers of the operating system take no more than some ten times as many."""
MOST_INCHES = 100.0
MOST_WORKERS = 256
MIN_ROUNDS = 6
"""The fewest samples whose extremes enclose the median with 95% confidence."""
DECIMAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def refuse(text: str, problem: str) -> NoReturn:
    """Refuse a value: it is quoted, and without its middle if it is long."""
    raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} {problem}")


def whole(text: str, what: str = "a number", least: int = 0, most: int = MOST) -> int:
    """Parse a whole number of at least 0, in ASCII digits. `str.isdecimal` is true of other digits, too."""
    if not re.fullmatch(r"[0-9]{1,4000}", text) or int(text) < least:
        refuse(text, f"is not {what}; use a whole number of at least {least}")
    if int(text) > most:
        refuse(text, f"is too large; use at most {most:,}")
    return int(text)


def count(text: str, most: int = MOST) -> int:
    """Parse a whole number of at least 1."""
    return whole(text, "a count", 1, most)


def workers(text: str) -> int:
    """Parse a number of processes."""
    return count(text, MOST_WORKERS)


def rounds(text: str) -> int:
    """Parse a number of rounds that allows for a 95% interval."""
    if (number := count(text)) < MIN_ROUNDS:
        refuse(text, f"rounds are too few for a 95% interval of a median; use {MIN_ROUNDS} or more")
    return number


def window(text: str) -> int | None:
    """Parse the tokens of an attention window; None for dense attention."""
    return None if text == "dense" else count(text)


def positive(text: str, what: str = "a positive number; use one such as 2.5", most: float = MOST_AMOUNT) -> float:
    """Parse a number above 0.

    >>> positive("1.4e12")
    1400000000000.0
    """
    if not DECIMAL.fullmatch(text) or not float(text) > 0:
        refuse(text, f"is not {what}")
    if float(text) > most:
        refuse(text, f"is too large; use at most {most:g}")
    return float(text)


def tokens(text: str) -> float:
    """Parse a number of tokens, with the suffix K, M, B or T if that is shorter.

    >>> tokens("15T"), tokens("300B"), tokens("1.4e12")
    (15000000000000.0, 300000000000.0, 1400000000000.0)
    """
    factor = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}.get(text[-1:].lower())
    number = text[:-1] if factor else text
    if not DECIMAL.fullmatch(number) or not 0 < float(number) * (factor or 1.0) <= MOST_AMOUNT:
        refuse(text, "is not a number of tokens; use one such as 15T, 300B or 1.4e12")
    return float(number) * (factor or 1.0)


def amount(text: str) -> float:
    """Parse a number of at least 0."""
    zero = DECIMAL.fullmatch(text) and float(text) == 0
    return 0.0 if zero else positive(text, "a number of at least 0; use one such as 2.5")


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    return positive(text, "a time; use a positive number of seconds, such as 2.5", MOST_SECONDS)


def percent(text: str) -> float:
    """Parse a percentage above 0 into a fraction.

    >>> percent("5%")
    0.05
    """
    if not text.endswith("%"):
        refuse(text, "is not a percentage; write 5%")
    return positive(text.removesuffix("%")) / 100


def switch(text: str) -> bool:
    """Parse true or false."""
    if text.lower() not in ("true", "false"):  # messages write False, as Python does
        refuse(text, "is neither true nor false")
    return text.lower() == "true"


def assignment(text: str) -> tuple[str, str]:
    """Parse a name with its value, which may contain commas.

    >>> assignment("xla_disable_hlo_passes=reduce-scatter-creator,all-reduce-combiner")
    ('xla_disable_hlo_passes', 'reduce-scatter-creator,all-reduce-combiner')
    """
    name, _, value = text.partition("=")
    if not (name and value):
        refuse(text, "is not an option with a value; write it as NAME=VALUE")
    return name, value


def sizes(text: str) -> tuple[int, int]:
    """Parse the first and the last number of devices.

    >>> sizes("8..16384")
    (8, 16384)
    """
    first, _, last = text.partition("..")
    try:
        begin, end = count(first), count(last)
    except argparse.ArgumentTypeError:
        begin = end = 0
    if not 0 < begin <= end:
        refuse(text, "is not a range of devices such as 8..16384")
    return begin, end


def batch(text: str) -> int | str:
    """Parse a batch size, or "all"."""
    return text if text == "all" else count(text)


def inches(text: str) -> tuple[float, float]:
    """Parse the width and the height of a picture.

    >>> inches("3.3x2.5")
    (3.3, 2.5)
    """
    width, _, height = text.partition("x")
    try:
        found = positive(width, most=MOST_INCHES), positive(height, most=MOST_INCHES)
    except argparse.ArgumentTypeError:
        found = None
    if found is None or min(found) < 1:
        refuse(text, f"is not a size in inches; use width and height from 1 to {MOST_INCHES:g}, such as 3.3x2.5")
    return found


def interval(text: str) -> tuple[float, float]:
    """Parse two numbers, of which the second is larger.

    >>> interval("0.5,2")
    (0.5, 2.0)
    """
    try:
        begin, end = map(float, text.split(","))
    except ValueError:
        begin = end = math.nan
    if not -math.inf < begin < end < math.inf:
        refuse(text, "is not an interval; write its begin and its end, such as 100,120.5")
    return begin, end


def topology(text: str) -> Topology:
    """Parse the devices of a pod or a cluster."""
    try:
        return Topology.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def topology_or_here(text: str) -> Topology | str:
    """Parse a topology, or "here" for the devices of this machine."""
    return text if text == "here" else topology(text)


def picture(text: str) -> Path:
    """Parse the path of a picture: its suffix is its format."""
    if not is_picture(path := Path(text)):
        refuse(text, NO_PICTURE)
    return path


def program(text: str) -> str:
    """Parse the name of a program into its absolute path."""
    if not (found := shutil.which(text)):
        refuse(text, "is not a program; name one, such as .venv/bin/python")
    return str(Path(found).absolute())  # symbolic links stay unresolved: Python finds its virtual environment by them
