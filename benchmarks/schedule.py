"""Prints a pipeline schedule: what each stage does, tick by tick. It needs no JAX and runs no step.

meshmark schedule 1f1b --stages 4 --microbatches 8
"""

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.cli.refusing import refusing
from benchmarks.commandline.ending import run
from benchmarks.commandline.parser import Parser
from strategies.infeasible import Infeasible
from strategies.pipelining.schedules import SCHEDULES, Schedule


def make_parser() -> Parser:
    """Return the parser of `meshmark schedule`."""
    parser = Parser("meshmark schedule", description="Print what the stages of a pipeline do, tick by tick.")
    add = parser.add_argument
    add("name", choices=tuple(SCHEDULES), help="the schedule")
    add("--stages", type=int, required=True, metavar="S", help="number of pipeline stages")
    add("--microbatches", type=int, required=True, metavar="M", help="number of microbatches")
    add("--chunks", type=int, metavar="V", help="chunks of layers per stage; default: 2 of interleaved, else 1")
    add("--json", action="store_true", help="the table as JSON, for `meshmark timeline`")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a schedule: as text with its bubbles and microbatches in flight, or as JSON."""
    parser = make_parser()
    option = parser.parse_args(arguments)
    with refusing(parser):
        schedule = asked(option)
    if option.json:
        json.dump(schedule.as_dict(), sys.stdout)
        return
    print(schedule)
    for name, share in (("bubble", schedule.bubble()), ("lockstep bubble", schedule.lockstep_bubble())):
        print(f"{name} {share:.1%} of the time, where backward of inputs and of weights each take as long as forward")
    print(f"in flight {', '.join(str(schedule.in_flight(stage)) for stage in range(schedule.stages))}")


def asked(option: argparse.Namespace) -> Schedule:
    """The schedule that the options ask for.

    Raises:
        Infeasible: a number is below one, the table is too large, or the numbers do not fit the schedule.
    """
    for name in ("stages", "microbatches", "chunks"):
        if (number := getattr(option, name)) is not None and number < 1:
            raise Infeasible(f"--{name} {number}; it must be at least 1")
    chunks = (2 if option.name == "interleaved" else 1) if option.chunks is None else option.chunks
    return SCHEDULES[option.name](option.stages, option.microbatches, chunks)


if __name__ == "__main__":
    run(main)
