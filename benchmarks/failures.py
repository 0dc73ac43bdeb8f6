"""How a case can end badly, and the one word for it in its row."""

from typing import Literal

from strategies import Infeasible

Status = Literal["ok", "infeasible", "oom", "compile_error", "timeout", "nan_loss", "mismatch", "interrupted", "error"]

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "SIGKILL")
"""What backends say, and how Linux ends a process that takes more memory than there is."""


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


class Recompiled(CaseFailure):
    """Something was compiled while steps were timed."""


def status_of(error: Exception) -> Status:
    """The word for what went wrong.

    >>> status_of(MemoryError()), status_of(Mismatch("loss")), status_of(KeyError("x"))
    ('oom', 'mismatch', 'error')
    """
    if isinstance(error, Infeasible):
        return "infeasible"
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY):
        return "oom"
    return error.status if isinstance(error, CaseFailure) else "error"


def reason_of(error: Exception) -> str:
    """What went wrong, in one line.

    >>> reason_of(Infeasible("tensor=3 does not divide heads=8")), reason_of(KeyError("x"))
    ('tensor=3 does not divide heads=8', "KeyError: 'x'")
    """
    first_line = str(error).partition("\n")[0]
    return first_line if isinstance(error, CaseFailure | Infeasible) else f"{type(error).__name__}: {first_line}"
