"""Command line that describes strategies and pipeline schedules. It runs no step.

meshmark schedule 1f1b --stages 4 --microbatches 8
meshmark show fsdp --mesh fsdp=4,tensor=2 --png shards.png
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from strategies.backends.topologies import EXAMPLE
from strategies.config import Infeasible
from strategies.names import UnknownName
from strategies.pipelining.schedules import SCHEDULES, Schedule


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, without lines of usage before it."""

    def error(self, message: str) -> NoReturn:
        """End the command with 2: its arguments cannot be read."""
        self.refuse(f"{message}; see --help")

    def refuse(self, message: str) -> NoReturn:
        """End the command with 2: what was asked for is not possible."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def make_parser() -> Parser:
    """Return the parser of `meshmark strategies`, `schedule` and `show`, each a subcommand."""
    parser = Parser(prog="meshmark", description="Ask about strategies.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = "list all strategies, with their mesh axes and options"
    add_list(commands.add_parser("list", prog="meshmark strategies", help=about))
    add_schedule(commands.add_parser("schedule", help="print what the stages of a pipeline do, tick by tick"))
    add_show(commands.add_parser("show", help="print what each device holds, and what it sends in a step"))
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and run the command that they name."""
    options = make_parser().parse_args(arguments)
    options.run(options)


def add_list(parser: Parser) -> None:
    """Make a parser run `list`."""
    parser.set_defaults(run=print_all, refuse=parser.refuse)


def add_schedule(schedule: Parser) -> None:
    """Make a parser run `schedule`, with its options."""
    schedule.set_defaults(run=print_schedule, refuse=schedule.refuse)
    add = schedule.add_argument
    add("name", choices=tuple(SCHEDULES), help="the schedule")
    add("--stages", type=int, required=True, metavar="S", help="number of pipeline stages")
    add("--microbatches", type=int, required=True, metavar="M", help="number of microbatches")
    add("--chunks", type=int, metavar="V", help="chunks of layers per stage; default: 2 of interleaved, else 1")
    add("--json", action="store_true", help="the table as JSON, for `meshmark timeline`")


def add_show(show: Parser) -> None:
    """Make a parser run `show`, with its options."""
    show.set_defaults(run=print_overviews, refuse=show.refuse)
    add = show.add_argument
    add("names", nargs="*", metavar="STRATEGY", help="default: all of them")
    add("--mesh", help="such as fsdp=4; default: four devices, or two along each of several axes")
    add("--topology", help=f"all devices of a topology such as {EXAMPLE}, which need not be there")
    add("--preset", default="gpt2", help="the model; default: gpt2")
    batch_size = "sequences in a global batch; default: 16; with --topology one per device"
    add("--batch-size", type=int, metavar="N", help=batch_size)
    add("--json", action="store_true", help="as JSON, for `meshmark diagram` and `meshmark shards`")
    add("--png", metavar="FILE", help="draw which device holds which part of each array, too")


def print_overviews(options: argparse.Namespace) -> None:
    """Print what each device holds and sends, for each strategy asked for, as text or as JSON.

    For a mesh or a topology that is given, the text has each array by itself, too.
    """
    strategies = registry(options)
    from strategies.costs.overview import asked_overview

    try:
        names = options.names or list(strategies)
        if options.png and len(names) > 1:
            raise Infeasible(f"--png draws one strategy, and {len(names)} are asked for; name one")
        found = [asked_overview(n, options.preset, options.mesh, options.topology, options.batch_size) for n in names]
    except (Infeasible, UnknownName) as error:
        options.refuse(str(error))
        return
    for name, each in zip(names, found, strict=True):
        if each.strategy != name:
            also = f"{each.strategy}, which does the same along the axes of {name}"
            print(f"{name} lacks an axis of {options.mesh}; this is {also}", file=sys.stderr)
    written = json.dumps([each.as_dict() for each in found])
    detailed = options.mesh or options.topology
    texts = [f"{each}\n\n{each.array_table()}" if detailed else str(each) for each in found]
    print(written if options.json else "\n\n".join(texts))
    if options.png:
        draw(written, options.png)


def draw(overview: str, picture: str) -> None:
    """Pass an overview to the command that draws it: `show --json | meshmark shards FILE`."""
    # The package that draws needs no JAX, and this one no matplotlib: they share nothing but this text.
    drawn = subprocess.run([sys.executable, "-m", "results.shards", picture], input=overview, text=True, check=False)
    if drawn.returncode:
        sys.exit(drawn.returncode)


def print_all(options: argparse.Namespace) -> None:
    """Print the name, mesh axes and options of each strategy, including those that `MESHMARK_STRATEGIES` adds."""
    for name, strategy in registry(options).items():
        print(f"{name:12}{', '.join(strategy.axes):40}{', '.join(strategy.options)}".rstrip())


def registry(options: argparse.Namespace) -> Mapping[str, Any]:
    """All strategies by name. The import loads JAX, which `schedule` does not need, and the modules of the user."""
    try:
        from strategies import STRATEGIES
    except ValueError as error:
        options.refuse(str(error))
        raise
    return STRATEGIES


def print_schedule(options: argparse.Namespace) -> None:
    """Print a schedule: as text with its bubbles and microbatches in flight, or as JSON."""
    try:
        schedule = asked(options)
    except Infeasible as error:
        options.refuse(str(error))
        return
    if options.json:
        json.dump(schedule.as_dict(), sys.stdout)
        return
    print(schedule)
    for name, share in (("bubble", schedule.bubble()), ("lockstep bubble", schedule.lockstep_bubble())):
        print(f"{name} {share:.1%} of the time, where backward of inputs and of weights each take as long as forward")
    print(f"in flight {', '.join(str(schedule.in_flight(stage)) for stage in range(schedule.stages))}")


def asked(options: argparse.Namespace) -> Schedule:
    """The schedule that the options ask for.

    Raises:
        Infeasible: a number is below one, the table is too large, or the numbers do not fit the schedule.
    """
    for name in ("stages", "microbatches", "chunks"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise Infeasible(f"--{name} {number}; it must be at least 1")
    chunks = (2 if options.name == "interleaved" else 1) if options.chunks is None else options.chunks
    return SCHEDULES[options.name](options.stages, options.microbatches, chunks)


if __name__ == "__main__":
    # Ctrl-C and a closed pipe (`| head`) end the command silently, as they end other tools that only print.
    for number in {signal.SIGINT, getattr(signal, "SIGPIPE", signal.SIGINT)}:
        signal.signal(number, signal.SIG_DFL)
    main()
