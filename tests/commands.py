"""Commands as `meshmark` runs them, in the process of a test."""

import contextlib
import io
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.cli.commands import COMMANDS
from benchmarks.cli.main import prepared, resolved


class Ended(NamedTuple):
    """What a command left: its exit code, and what it wrote to stdout and stderr."""

    code: Any
    out: str
    err: str


def command(name: str) -> Callable[[Sequence[str]], int]:
    """A function that runs the command with arguments, and returns its exit code; what is refused raises SystemExit."""

    def main(arguments: Sequence[str]) -> int:
        return prepared(name, arguments)() or 0

    return main


def ended(args: str | Sequence[str], stdin: bytes = b"") -> Ended:
    """Run a command, with these bytes as its stdin, to its end."""
    name, arguments = resolved(args.split() if isinstance(args, str) else args)
    output, errors, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = prepared(name, arguments)() or 0
    except SystemExit as end:
        code = end.code or 0  # a string is not a documented code
    finally:
        sys.stdin = before
    return Ended(code, output.getvalue(), errors.getvalue())


def assert_refused(args: str | Sequence[str], status: int, pattern: str, stdin: bytes = b"") -> Ended:
    """Check that a command ends with an exit code and says what is wrong, without a traceback.

    It says so on stderr; a gate may say it in its report, on stdout.
    """
    found = ended(args, stdin)
    assert found.code == status, found.err
    is_gate = (args.split() if isinstance(args, str) else args)[0] == "regress"
    said = f"{found.out if is_gate else ''} {found.err}"
    assert re.search(pattern, " ".join(said.split())), found.out + found.err
    assert "Traceback" not in found.out + found.err
    return found


def parsed(name: str, arguments: Sequence[str] = ()) -> Namespace:
    """The options of a command, as it reads its arguments."""
    return COMMANDS[name].parser(name).parse_args(arguments)
