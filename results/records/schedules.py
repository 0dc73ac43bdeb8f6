"""Reads pipeline schedules, which `python -m strategies schedule --json` prints."""

import json
import reprlib
from typing import Any, TypeGuard

from results.records.reading import RecordError

KINDS = {"F": "forward", "B": "backward", "W": "gradients of weights"}
"""Kinds of operations of a stage in a tick."""
MOST = 1400
"""Most stages or ticks in a picture: matplotlib draws at most 2^16 pixels in each direction."""
WRITTEN_BY = "print one with `python -m strategies schedule NAME --stages S --microbatches M --json`"


def read(text: str) -> dict[str, Any]:
    """Parse a printed schedule.

    Raises:
        RecordError: the text is not a complete schedule; the message says what is wrong.
    """
    try:
        schedule = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"stdin is no schedule ({error}); {WRITTEN_BY}") from error
    return checked(schedule)


def checked(schedule: Any) -> dict[str, Any]:
    """Check that a JSON value is a complete schedule, and return it.

    Raises:
        RecordError: it is not; the message says what is wrong.
    """
    if not isinstance(schedule, dict) or not isinstance(schedule.get("schedule"), str):
        raise RecordError(f"stdin is JSON but no schedule with a name; {WRITTEN_BY}")
    chunks, stages = schedule.get("chunks"), schedule.get("stages")
    if not is_whole(chunks) or chunks < 1:
        raise RecordError(f"stdin: `chunks` is {reprlib.repr(chunks)}, not a whole number of at least 1; {WRITTEN_BY}")
    if not isinstance(stages, list) or not stages or not all(isinstance(row, list) and row for row in stages):
        raise RecordError(f"stdin: `stages` is no list of rows, one for each stage; {WRITTEN_BY}")
    if len(lengths := {len(row) for row in stages}) > 1:
        raise RecordError(f"stdin: stages have {min(lengths)} to {max(lengths)} ticks, not the same number")
    if max(len(stages), *lengths) > MOST:
        raise RecordError(f"{len(stages)} stages of {max(lengths)} ticks cannot be drawn; {MOST} of each at most")
    operations = [op for row in stages for op in row if op is not None]
    if strange := [op for op in operations if not is_operation(op, chunks)]:
        raise RecordError(f"stdin: {reprlib.repr(strange[0])} is no operation of {chunks} chunks; {WRITTEN_BY}")
    if not operations:
        raise RecordError("stdin is a schedule in which nothing is done; give it a stage and a microbatch")
    return schedule


def is_operation(op: Any, chunks: int) -> bool:
    """Return whether a value is an operation of a schedule with this many chunks per stage."""
    if not isinstance(op, dict) or op.get("kind") not in tuple(KINDS):
        return False
    microbatch, chunk = op.get("microbatch"), op.get("chunk")
    return is_whole(microbatch) and is_whole(chunk) and microbatch >= 0 and 0 <= chunk < chunks


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number."""
    return type(value) is int
