"""How a case can end badly, and the one word for it in its row."""

import re
from pathlib import Path
from typing import Literal

from strategies import Infeasible

Status = Literal["ok", "infeasible", "oom", "compile_error", "timeout", "nan_loss", "mismatch", "interrupted", "error"]

HBM, UNNAMED = "hbm", ""
MEMORIES = re.compile(rf"\b({HBM}|vmem|smem|shared memory)\b", re.IGNORECASE)
"""Those that compilers name: of the device, or of a core of it, where a kernel that takes too much is no large step."""

EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED|\bout of memory\b", re.IGNORECASE)
"""How backends say that memory is too small; XLA's CPU allocator says no more than "Out of memory allocating"."""
REASON_LETTERS = 2000
"""The most that a row says of what went wrong."""


class CaseFailure(Exception):
    """A case that ended badly in a way that has a name."""

    status: Status = "error"


class CompileError(CaseFailure):
    """The step could not be lowered or compiled."""

    status = "compile_error"


class NonFinite(CaseFailure):
    """A loss or a gradient norm is not a number, or infinite."""

    status = "nan_loss"


class Mismatch(CaseFailure):
    """The step computes something else than one device does."""

    status = "mismatch"


class Died(CaseFailure):
    """The process ended, more than once, while the case ran."""


class MayDeadlock(CaseFailure):
    """Two collectives of the step may be in flight at once, which virtual CPU devices have too few threads for."""


class TimedOut(CaseFailure):
    """The case hung, and its process was ended."""

    status = "timeout"


class Recompiled(CaseFailure):
    """Something was compiled while steps were timed."""


def status_of(error: Exception) -> Status:
    """The word for what went wrong.

    >>> status_of(MemoryError()), status_of(Mismatch("loss")), status_of(KeyError("x"))
    ('oom', 'mismatch', 'error')
    """
    if isinstance(error, Infeasible):
        return "infeasible"
    killed = "SIGKILL" in str(error)  # how Linux ends a process that takes more memory than there is
    if isinstance(error, MemoryError) or killed or exhausted(error) in (HBM, UNNAMED):
        return "oom"
    return error.status if isinstance(error, CaseFailure) else "error"


def exhausted(error: Exception) -> str | None:
    """Which of `MEMORIES` a backend says is too small, as it names it first; None where it says nothing such.

    >>> exhausted(CompileError("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem; 17.19M of 16M"))
    'vmem'
    >>> exhausted(MemoryError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes.")), exhausted(KeyError("hbm"))
    ('', None)
    """
    if not EXHAUSTED.search(str(error)):
        return None
    named = MEMORIES.search(str(error))
    return named[1].lower() if named else UNNAMED


def reason_of(error: Exception, whole: Path | None = None) -> str:
    """What went wrong, in one line that a table can hold. All of a longer one is in the file `whole`, if one is named.

    >>> reason_of(Infeasible("tensor=3 does not divide heads=8")), reason_of(KeyError("x"))
    ('tensor=3 does not divide heads=8', "KeyError: 'x'")
    """
    first_line = str(error).partition("\n")[0]
    reason = first_line if isinstance(error, CaseFailure | Infeasible) else f"{type(error).__name__}: {first_line}"
    if len(reason) <= REASON_LETTERS:
        return reason
    kept = ""
    if whole:
        try:
            whole.write_text(reason, encoding="utf-8", errors="replace")
            kept = f"; all of them are in {whole}"
        except OSError as problem:
            kept = f"; the rest is lost, for {whole} cannot be written: {problem.strerror}"
    return f"{reason[:REASON_LETTERS]}... ({len(reason):,} letters{kept})"
