"""How the options of the paired gate are read."""

import argparse
import math
import shutil
from pathlib import Path
from typing import Any

# With `--untied`, the options of `pytest benchmarks` that select cases. What they mean is up to the workers.
SELECTING = (
    "strategy devices mesh batch-size microbatches option "
    "preset layers embed heads mlp vocab sequence dtype remat compiler-option corpus"
)


class PassOn(argparse.Action):
    """Collects options as they were written."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Collect one more."""
        written = f"{option_string}={values}" if values else option_string
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), written])


def add_selection(group: argparse._ArgumentGroup) -> None:
    """Declare the options that select cases; together they are `selection`."""
    for name in SELECTING.split():
        group.add_argument(f"--{name}", dest="selection", action=PassOn, default=[], metavar="...")
    group.add_argument("--untied", dest="selection", action=PassOn, default=[], nargs=0)


def program(text: str) -> str:
    """Where a program is, seen from any directory."""
    if not (found := shutil.which(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a program; name one, such as .venv/bin/python")
    return str(Path(found).absolute())  # its links unresolved: a virtual environment is found by them


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; give a whole number of at least 1")
    return int(text)


def percent(text: str) -> float:
    """A part of a whole.

    >>> percent("5%")
    0.05
    """
    if not text.endswith("%"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage; write 5%")
    return positive(text.removesuffix("%")) / 100


def positive(text: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number; give one such as 2.5")
    return value
