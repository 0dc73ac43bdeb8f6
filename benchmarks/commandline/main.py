"""One entrance to all commands: `meshmark COMMAND ...`, or `python -m benchmarks COMMAND ...`."""

import difflib
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from typing import NamedTuple


class Command(NamedTuple):
    """What a command runs.

    Attributes:
        summary: what it is for, in a line.
        module: as `python -m` runs it.
        arguments: that it gets before those that are given.
        parser: the function that makes its parser, where the module loads what a help needs not.
    """

    summary: str
    module: str
    arguments: tuple[str, ...] = ()
    parser: str = ""


COMMANDS = {
    "measure": Command(
        "time strategies on the devices that are there",
        "pytest",
        ("--pyargs", "benchmarks"),
        "benchmarks.parsers:measure",
    ),
    "plot": Command("draw the curves of measured runs", "results.plot", parser="results.parsers:plot"),
    "page": Command("write one page of HTML about runs and searches", "results.page", parser="results.parsers:page"),
    "compare": Command("set stored runs side by side, case by case", "results.compare"),
    "merge": Command("make one run of several launches", "results.merge"),
    "export": Command("write a run as CSV or Markdown", "results.export"),
    "regress": Command("judge whether a change made a step worse", "results.regress"),
    "baseline": Command("write the baseline of the exact gate", "results.baseline"),
    "compile": Command(
        "ask a compiler about a step, for devices that need not be there",
        "benchmarks.compile",
        parser="benchmarks.parsers:compile_cases",
    ),
    "search": Command(
        "search for the best mesh by formulas, and compile the best",
        "benchmarks.feasibility",
        parser="benchmarks.parsers:search",
    ),
    "frontier": Command("draw what a search has found", "results.frontier", parser="results.parsers:frontier"),
    "strategies": Command("list the strategies, with their mesh axes and options", "strategies", ("list",)),
    "schedule": Command("print what the stages of a pipeline do, tick by tick", "strategies", ("schedule",)),
    "timeline": Command("draw a schedule", "results.timeline", parser="results.parsers:timeline"),
    "show": Command("print what each device holds, and what it sends in a step", "strategies", ("show",)),
    "diagram": Command("draw what each device holds, and who sends what to whom", "results.diagram"),
    "launch": Command("measure in several processes on this machine", "benchmarks.launch"),
}
WRONG_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names; without one, print what there is.

    Raises:
        SystemExit: with the exit code of the command, or 2 if there is no such command.
    """
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    name, others = (given[0], given[1:]) if given else ("--help", [])
    if name in ("--help", "-h"):
        print(contents())
    elif name == "--version":
        print(f"meshmark {installed_version()}")
    elif name in COMMANDS:
        sys.argv = [f"meshmark {name}", *COMMANDS[name].arguments, *others]
        start(COMMANDS[name])
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        print(f"meshmark: there is no command {name!r}.{meant} `meshmark --help` lists all commands.", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def start(command: Command) -> None:
    """Run a command with the arguments in `sys.argv`, or print its help without loading what it needs to run."""
    if command.parser and {"--help", "-h"} & {*sys.argv}:
        module, _, function = command.parser.partition(":")
        getattr(importlib.import_module(module), function)().print_help()
    elif command.module == "pytest":  # it must be the first to import this package, whose assertions it rewrites
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
    else:
        runpy.run_module(command.module, run_name="__main__")


def contents() -> str:
    """All commands, each with what it is for."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    usage = "usage: meshmark COMMAND ...   (meshmark COMMAND --help describes its options)"
    return "\n".join((usage, "", "Parallelism strategies for training GPTs in JAX, measured.", "", *lines))


def installed_version() -> str:
    """The version of meshmark, where it is installed.

    >>> installed_version() != ""
    True
    """
    from importlib.metadata import PackageNotFoundError, version  # it takes as long to load as all of a help

    try:
        return version("meshmark")
    except PackageNotFoundError:
        return "of a checkout that is not installed"


def program(usual: str) -> str:
    """The name under which the help of a command shows it.

    >>> program("python -m results.plot")
    'python -m results.plot'
    """
    return sys.argv[0] if sys.argv[0].startswith("meshmark ") else usual
