"""Prints a pipeline schedule: what each stage does, tick by tick. It needs no JAX and runs no step.

meshmark schedule 1f1b --stages 4 --microbatches 8
"""

import argparse
import json
from collections.abc import Iterator

from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import present
from benchmarks.cli.tables import table_width
from strategies.pipelining.orders import SCHEDULES
from strategies.pipelining.schedules import Schedule


def main(option: argparse.Namespace) -> None:
    """Print a schedule: as text with its bubbles and microbatches in flight, or as JSON."""
    with refusing():
        schedule = SCHEDULES[option.name](option.stages, option.microbatches, *filter(None, [option.chunks]))
    present(option, json.dumps(schedule.as_dict()), "\n".join(described(schedule)))


def described(schedule: Schedule) -> Iterator[str]:
    """Yield the lines: the table, its bubbles, and the microbatches in flight in each stage."""
    yield from ticks(schedule)
    yield f"bubble: {schedule.bubble():.1%} of the time, if a backward pass takes twice as long as a forward pass"
    yield f"lockstep bubble: {schedule.lockstep_bubble():.1%} of the time on top, if stages start each tick together"
    yield f"microbatches in flight, by stage: {', '.join(str(schedule.in_flight(n)) for n in range(schedule.stages))}"


def ticks(schedule: Schedule) -> Iterator[str]:
    """Yield the lines of the table; ticks that do not fit the terminal are in further tables below."""
    lines = str(schedule).splitlines()
    letters = (len(lines[0]) + 1) // len(schedule.table[0])
    room = max(1, (table_width() + 1) // letters) * letters
    for start in range(0, len(lines[0]), room):
        yield from [""] * (start > 0)
        yield from (line[start : start + room].rstrip() for line in lines)
