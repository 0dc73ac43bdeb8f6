"""Argument types of the commands in this package, and the options of the paired gate that select cases."""

import argparse
import math
import shutil
from pathlib import Path
from typing import Any

from benchmarks.commandline.values import positive

# Options of `pytest benchmarks` that select cases, apart from `--untied`. The workers interpret them.
SELECTING = (
    "strategy devices mesh batch-size microbatches option "
    "preset layers embed heads mlp vocab sequence dtype remat compiler-option corpus "
    "attention-window attention-stride attention-pattern attention-summary"
)


class PassOn(argparse.Action):
    """Collects options verbatim, to pass them on to the workers."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Append the option, with its value if it has one."""
        written = f"{option_string}={values}" if values else option_string
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), written])


def add_selection(group: argparse._ArgumentGroup) -> None:
    """Declare the options that select cases; all are collected in the list `selection`."""
    for name in SELECTING.split():
        group.add_argument(f"--{name}", dest="selection", action=PassOn, default=[], metavar="...")
    group.add_argument("--untied", dest="selection", action=PassOn, default=[], nargs=0)


def interval(text: str) -> tuple[float, float]:
    """Parse two numbers, of which the second is larger.

    >>> interval("0.5,2")
    (0.5, 2.0)

    Raises:
        argparse.ArgumentTypeError: they are no such numbers.
    """
    try:
        begin, end = map(float, text.split(","))
    except ValueError:
        begin = end = math.nan
    if not -math.inf < begin < end < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no interval; give its begin and its end, such as 100,120.5")
    return begin, end


def program(text: str) -> str:
    """Parse the name of a program into its absolute path.

    Raises:
        argparse.ArgumentTypeError: there is no such program.
    """
    if not (found := shutil.which(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a program; name one, such as .venv/bin/python")
    return str(Path(found).absolute())  # symbolic links stay unresolved: Python finds its virtual environment by them


def percent(text: str) -> float:
    """Parse a percentage above 0 into a fraction.

    >>> percent("5%")
    0.05

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    if not text.endswith("%"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage; write 5%")
    return positive(text.removesuffix("%")) / 100
