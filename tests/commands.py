"""Commands as `meshmark` runs them, in the process of a test."""

from argparse import Namespace
from collections.abc import Callable, Sequence

from benchmarks.cli.commands import COMMANDS
from benchmarks.cli.main import prepared


def command(name: str) -> Callable[[Sequence[str]], int]:
    """A function that runs the command with arguments, and returns its exit code; what is refused raises SystemExit."""

    def main(arguments: Sequence[str]) -> int:
        return prepared(name, arguments)() or 0

    return main


def parsed(name: str, arguments: Sequence[str] = ()) -> Namespace:
    """The options of a command, as it reads its arguments."""
    return COMMANDS[name].parser(name).parse_args(arguments)
