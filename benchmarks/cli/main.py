"""The entry point of all commands: `meshmark COMMAND ...`, or `python -m benchmarks COMMAND ...`."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cli.commands import COMMANDS, RARE, SECTIONS, STEPS_COMMANDS
from benchmarks.cli.ending import Refused, run
from benchmarks.cli.outputs import Unwritable
from benchmarks.cli.starting import pytest_problem, steps_problem
from benchmarks.cli.statuses import BROKEN_INPUT, WRONG_USAGE
from strategies.infeasible import BrokenStrategy
from strategies.names import did_you_mean, similar
from strategies.schema import SchemaError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names; without arguments, list all commands."""
    given = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    name, others = resolved(given)
    helped = {"--help", "-h"} & {*given}
    if name in ("measure", "launch") and not helped and (problem := pytest_problem()):
        print(f"meshmark {name}: {problem}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
    if name == "measure" and not helped:
        # pytest rewrites assertions only in modules that it imports first.
        # -P: the current folder may be a project with a package `benchmarks` of its own.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "pytest", str(Path(__file__).parents[1]), *others])
    elif name:
        run(prepared(name, others))
    elif given[0] == "--version":
        run(lambda: print(f"meshmark {installed_version()}"))
    elif helped and (given[0] in helped or verbs_of(given[0])):
        run(lambda: print(contents("" if given[0] in helped else given[0])))
    else:
        unknown = f"unknown command {' '.join(given[: 2 if verbs_of(given[0]) else 1])!r}"
        meant = did_you_mean(verbs_of(given[0]) or similar(given[0], COMMANDS))
        print(f"meshmark: {unknown}; `meshmark --help` lists all commands{meant}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def resolved(given: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the command that some words begin with, empty if there is none, and the words after it.

    >>> resolved(["plot", "a.json"]), resolved(["regress", "exact", "a.json", "b.json"])
    (('plot', ['a.json']), ('regress exact', ['a.json', 'b.json']))
    """
    name = next((name for name in (" ".join(given[:2]), given[0]) if name in COMMANDS), "")
    return name, [*given[len(name.split()) :]]


def verbs_of(word: str) -> list[str]:
    """The commands of two words that begin with a word."""
    return [name for name in COMMANDS if name.startswith(f"{word} ")]


def prepared(name: str, arguments: Sequence[str]) -> Callable[[], int | None]:
    """Parse the arguments of a command and import it; the result runs it, and returns its exit code."""
    command = COMMANDS[name]
    parser = command.parser(f"meshmark {name}")
    options = parser.parse_args(arguments)
    if name in STEPS_COMMANDS and (problem := steps_problem()):
        parser.exit(WRONG_USAGE, f"{parser.prog}: {problem}")
    # Not by runpy as `__main__`: processes that a command spawns must find its functions under the module's name.
    try:
        instead = (module for name, module in command.instead.items() if getattr(options, name))
        main_of_command = importlib.import_module(next(instead, command.module)).main
    except ValueError as error:  # of a module that MESHMARK_STRATEGIES names
        parser.exit(WRONG_USAGE, f"{parser.prog}: {error}")

    def work() -> int | None:
        """Run it; what it refuses ends it in one line, with 2, and files that cannot be read or written with 5."""
        try:
            return main_of_command(options)
        except (SchemaError, Unwritable) as error:
            parser.exit(BROKEN_INPUT, f"{parser.prog}: {error}")
        except Refused as error:
            parser.exit(WRONG_USAGE, f"{parser.prog}: {error.kind}{error}")
        except BrokenStrategy as error:
            parser.exit(WRONG_USAGE, f"{parser.prog}: {error}")

    return work


def contents(word: str = "") -> str:
    """Return the help text that lists all commands with their purposes, or those of two words that begin with one."""
    width = max(map(len, COMMANDS))
    lines = ["usage: meshmark COMMAND ...   (meshmark COMMAND --help describes its options)", ""]
    lines += ["Parallelism strategies for training GPTs in JAX, measured."]
    for title, commands in SECTIONS.items():
        names = [name for name in commands if (name in verbs_of(word) if word else name not in RARE)]
        if names:
            lines += ["", f"{title}:", *(f"  {name:{width}}  {commands[name].summary}" for name in names)]
    return "\n".join([*lines, *([] if word else ["", f"more: {', '.join(RARE)}"])])


def installed_version() -> str:
    """Return the installed version of meshmark, or say that this checkout is not installed.

    >>> installed_version() != ""
    True
    """
    from importlib.metadata import PackageNotFoundError, version  # importing it takes as long as printing a help

    try:
        return version("meshmark")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"
