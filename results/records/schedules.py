"""Reads pipeline schedules, which `meshmark schedule --json` prints."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from results.records.reading import RecordError
from strategies.schema import Count, Whole, checked

KINDS = {"F": "forward", "B": "backward", "W": "gradients of weights"}
"""Kinds of operations of a stage in a tick."""
MOST = 1400
"""Most stages or ticks in a picture: matplotlib draws at most 2^16 pixels in each direction."""


class Operation(msgspec.Struct, frozen=True):
    """What a stage does in a tick."""

    kind: Literal["F", "B", "W"]
    microbatch: Whole
    chunk: Whole


class Schedule(msgspec.Struct, frozen=True):
    """A schedule: the operation of each stage at each tick, None where it is idle."""

    schedule: str
    chunks: Count
    stages: Annotated[list[Annotated[list[Operation | None], Meta(min_length=1)]], Meta(min_length=1)]


def read(content: Any, where: str = "stdin") -> Schedule:
    """Read a printed schedule that can be drawn; `where` is its file, for messages."""
    schedule = checked(content, Schedule, where)
    stages = schedule.stages
    if len(lengths := {len(row) for row in stages}) > 1:
        raise RecordError(f"{where}: stages have {min(lengths)} to {max(lengths)} ticks, not the same number")
    if max(len(stages), *lengths) > MOST:
        raise RecordError(
            f"{where}: {len(stages)} stages of {max(lengths)} ticks cannot be drawn; {MOST} of each at most"
        )
    operations = [op for row in stages for op in row if op is not None]
    if not operations:
        raise RecordError(f"{where} is a schedule in which nothing is done; use at least a stage and a microbatch")
    if (highest := max(op.chunk for op in operations)) >= schedule.chunks:
        raise RecordError(f"{where} has an operation of chunk {highest}, and `chunks` is {schedule.chunks}")
    return schedule
