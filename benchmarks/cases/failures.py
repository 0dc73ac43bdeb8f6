"""The ways in which a case can fail, and the status that its row has for each."""

import re
from typing import Literal

from strategies import Infeasible
from strategies.names import text_of

Status = Literal["ok", "infeasible", "oom", "compile_error", "timeout", "nan_loss", "mismatch", "interrupted", "error"]

HBM, UNNAMED = "hbm", ""
MEMORY_NAMES = re.compile(rf"\b({HBM}|vmem|smem|shared memory)\b", re.IGNORECASE)
"""Memories that compilers name in errors. Only "hbm" means that a step is too large: the others are on-chip memories,
which a single kernel can exceed."""

EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED|\bout of memory\b", re.IGNORECASE)
"""How backends report a lack of memory. XLA's CPU allocator says only "Out of memory allocating"."""
MAX_REASON_CHARACTERS = 2000
"""Longest reason that is stored in a row."""
ERRORS = (Exception, SystemExit)
"""What ends a case and not the run, also where a user's strategy calls `sys.exit`."""


class CaseFailure(Exception):
    """A failure of a case that has a status of its own."""

    status: Status = "error"


class CompileError(CaseFailure):
    """The step could not be lowered or compiled."""

    status = "compile_error"


class NonFinite(CaseFailure):
    """A loss or gradient norm is NaN or infinite."""

    status = "nan_loss"


class Mismatch(CaseFailure):
    """The step computes something else than one device does."""

    status = "mismatch"


class ProcessDied(CaseFailure):
    """The process died more than once while the case ran."""


class MayDeadlock(CaseFailure):
    """Two collectives of the step may be in flight at once, for which virtual CPU devices have too few threads."""


class TimedOut(CaseFailure):
    """The case made no progress, and its process was ended."""

    status = "timeout"


class Recompiled(CaseFailure):
    """Something was compiled while steps were timed."""


def status_of(error: BaseException) -> Status:
    """Status for an error.

    >>> status_of(MemoryError()), status_of(Mismatch("loss")), status_of(KeyError("x"))
    ('oom', 'mismatch', 'error')
    """
    if isinstance(error, Infeasible):
        return "infeasible"
    killed = "SIGKILL" in text_of(error)  # sent by Linux when memory runs out
    if isinstance(error, MemoryError) or killed or exhausted_memory(error) in (HBM, UNNAMED):
        return "oom"
    return error.status if isinstance(error, CaseFailure) else "error"


def exhausted_memory(error: BaseException) -> str | None:
    """Which memory a backend reports as too small.

    Returns:
        The first one of `MEMORY_NAMES` in the message; "" if it names none; None if the error is not about memory.

    >>> exhausted_memory(CompileError("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem; 17.19M of 16M"))
    'vmem'
    >>> exhausted_memory(MemoryError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes."))
    ''
    >>> exhausted_memory(KeyError("hbm")) is None
    True
    """
    if not EXHAUSTED.search(text_of(error)):
        return None
    named = MEMORY_NAMES.search(text_of(error))
    return named[1].lower() if named else UNNAMED


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line for a table: the first line of the message, and what it announces by a colon.

    It is cut after `MAX_REASON_CHARACTERS`; the traceback that is printed has all of it.

    >>> reason_of(Infeasible("tensor=3 does not divide heads=8")), reason_of(KeyError("x"))
    ('tensor=3 does not divide heads=8', "KeyError: 'x'")
    >>> reason_of(ValueError("shapes differ:\\n\\n  f32[2] and f32[3]\\nmore"))
    'ValueError: shapes differ: f32[2] and f32[3]'
    """
    lines = [line.strip() for line in text_of(error).splitlines()] or [""]
    # A line that ends in a colon only announces what is wrong.
    first_line = " ".join(filter(None, lines[:3])) if lines[0].endswith(":") else lines[0]
    reason = first_line if isinstance(error, CaseFailure | Infeasible) else f"{type(error).__name__}: {first_line}"
    if len(reason) <= MAX_REASON_CHARACTERS:
        return reason
    return f"{reason[:MAX_REASON_CHARACTERS]}... ({len(reason):,} characters)"
