"""The entry point of all commands: `meshmark COMMAND ...`, or `python -m benchmarks COMMAND ...`."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.commandline.ending import WRONG_USAGE, run


class Command(NamedTuple):
    """A command of `meshmark`.

    Attributes:
        summary: its purpose, in one line of the help.
        module: the module that runs it, as for `python -m`.
        arguments: arguments that precede those of the user.
        parser: "module:function" that returns its parser, if importing `module` would make `--help` slow; otherwise
            `module` has a function `make_parser`.
    """

    summary: str
    module: str
    arguments: tuple[str, ...] = ()
    parser: str = ""

    def make_parser(self, *asked: str) -> argparse.ArgumentParser:
        """Return its parser; with the name of a subcommand, that declares its options as well."""
        module, _, function = (self.parser or f"{self.module}:make_parser").partition(":")
        return getattr(importlib.import_module(module), function)(*asked)


COMMANDS = {
    "measure": Command(
        "time strategies on the devices of this machine",
        "pytest",
        (str(Path(__file__).parents[1]),),
        "benchmarks.cli.parsers:measure",
    ),
    "train": Command(
        "train on text, with checkpoints, and log the loss", "benchmarks.train", parser="benchmarks.cli.parsers:train"
    ),
    "plot": Command("draw the figures of runs", "results.plot", parser="results.cli.parsers:plot"),
    "page": Command("write an HTML page about runs and searches", "results.page", parser="results.cli.parsers:page"),
    "compare": Command("compare stored runs case by case", "results.compare"),
    "merge": Command("merge several launches into one run", "results.merge"),
    "export": Command("write a run as CSV or Markdown", "results.export"),
    "regress": Command("judge whether a change made a step worse", "results.regress"),
    "baseline": Command("write the baseline of the exact gate", "results.baseline"),
    "compile": Command(
        "compile a step for devices that need not be present, and report FLOPs, bytes and memory",
        "benchmarks.compile",
        parser="benchmarks.cli.parsers:compile_cases",
    ),
    "search": Command(
        "rank ways to spread a model by predicted seconds; compile and measure the best",
        "benchmarks.search.command",
        parser="benchmarks.cli.parsers:search",
    ),
    "predict": Command(
        "predict the seconds of published training runs",
        "benchmarks.predict",
        parser="benchmarks.cli.parsers:predict_runs",
    ),
    "fit": Command(
        "fit the constants of a machine to measured runs", "benchmarks.fit", parser="benchmarks.cli.parsers:fit_runs"
    ),
    "predictions": Command(
        "write a page of predicted against published seconds",
        "results.predictions",
        parser="results.cli.parsers:predictions",
    ),
    "scaling": Command("draw predicted time against devices", "results.scaling", parser="results.cli.parsers:scaling"),
    "calibrate": Command(
        "measure this machine, to predict times of steps on it",
        "benchmarks.calibrate",
        parser="benchmarks.cli.parsers:calibrate",
    ),
    "frontier": Command("draw the result of a search", "results.frontier", parser="results.cli.parsers:frontier"),
    "lanes": Command("draw a replayed step as lanes", "results.lanes", parser="results.cli.parsers:lanes"),
    "strategies": Command(
        "list the strategies, with their mesh axes and options",
        "benchmarks.listing",
        parser="benchmarks.cli.parsers:strategies",
    ),
    "schedule": Command("print a pipeline schedule, tick by tick", "benchmarks.schedule"),
    "timeline": Command("draw a pipeline schedule", "results.timeline", parser="results.cli.parsers:timeline"),
    "show": Command(
        "print what each device holds and sends in a step", "benchmarks.show", parser="benchmarks.cli.parsers:show"
    ),
    "diagram": Command("draw what each device holds, and which devices exchange what", "results.diagram"),
    "shards": Command(
        "draw which device holds which part of each array", "results.shards", parser="results.cli.parsers:shards"
    ),
    "launch": Command("measure in several processes on this machine", "benchmarks.launch"),
    "doctor": Command(
        "describe this installation and machine, to paste into an issue",
        "benchmarks.doctor",
        parser="benchmarks.cli.parsers:doctor",
    ),
}
ALIASES = {"advise": "search"}
"""Other names of commands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names; without arguments, list all commands.

    Args:
        arguments: the command and its arguments; by default those of the process.

    Raises:
        SystemExit: with the exit code of the command, or 2 if there is no such command.
    """
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    name, others = (given[0], given[1:]) if given else ("--help", [])
    name = ALIASES.get(name, name)
    if name in ("--help", "-h"):
        print(contents())
    elif name == "--version":
        print(f"meshmark {installed_version()}")
    elif name in COMMANDS:
        sys.argv = [f"meshmark {name}", *COMMANDS[name].arguments, *others]
        start(COMMANDS[name])
    else:
        near = difflib.get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        print(f"meshmark: unknown command {name!r}.{meant} `meshmark --help` lists all commands.", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def start(command: Command) -> None:
    """Run a command with the arguments in `sys.argv`, or print its help without importing what running it needs."""
    if command.parser and {"--help", "-h"} & {*sys.argv}:
        command.make_parser().print_help()
    elif command.module == "pytest":  # pytest rewrites assertions only in modules that it imports first
        # -P: the current folder may be a project with a package `benchmarks` of its own.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "pytest", *sys.argv[1:]])
    else:
        # Not by runpy as `__main__`: processes that a command spawns must find its functions under the module's name.
        run(importlib.import_module(command.module).main)


def contents() -> str:
    """Return the help text that lists all commands with their purposes."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    usage = "usage: meshmark COMMAND ...   (meshmark COMMAND --help describes its options)"
    return "\n".join((usage, "", "Parallelism strategies for training GPTs in JAX, measured.", "", *lines))


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
