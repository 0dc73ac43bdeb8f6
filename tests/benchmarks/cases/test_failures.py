"""Errors are classified into the status and the reason of a row."""

import jax
import pytest

from benchmarks.cases.failures import (
    MAX_REASON_CHARACTERS,
    CompileError,
    Mismatch,
    NonFinite,
    ProcessDied,
    Recompiled,
    reason_of,
    status_of,
)
from strategies import Infeasible

VMEM = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %fusion.1 = "
    "bf16[8,128]. Scoped allocation with size 17.19M and limit 16.00M exceeded scoped vmem limit by 1.19M."
)
"""A kernel exceeds a core's VMEM, which does not mean that the step exceeds the device's memory."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Infeasible("tensor=3 does not divide heads=8"), "infeasible"),
        (MemoryError(), "oom"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."), "oom"),
        (CompileError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"), "oom"),
        (jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 8589934592 bytes."), "oom"),
        (ValueError("Out of memory allocating 8589934592 bytes."), "oom"),
        (CompileError(VMEM), "compile_error"),
        (CompileError("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: 262144"), "compile_error"),
        (jax.errors.JaxRuntimeError(VMEM), "error"),
        (CompileError("INTERNAL: no such instruction"), "compile_error"),
        (NonFinite("loss nan"), "nan_loss"),
        (Mismatch("loss 5 where one device has 4"), "mismatch"),
        (ProcessDied("2 processes died while it ran, the last of SIGKILL"), "oom"),
        (ProcessDied("2 processes died while it ran, the last of SIGABRT"), "error"),
        (Recompiled("compiled while it was timed"), "error"),
        (ValueError("anything else"), "error"),
    ],
    ids=repr,
)
def test_every_error_has_its_status(error: Exception, status: str) -> None:
    """Each error has one status; it is `oom` where memory ran out, on the host or the device, also while compiling."""
    assert status_of(error) == status


def test_reason_is_one_line() -> None:
    """A row's reason is the first line of an error, with the type of an exception that is not ours."""
    assert reason_of(CompileError("INTERNAL: no such instruction\nin line 7")) == "INTERNAL: no such instruction"
    assert reason_of(ZeroDivisionError("no weights")) == "ZeroDivisionError: no weights"


def test_a_long_reason_is_cut() -> None:
    """A long reason is cut, and says how long it is."""
    reason = reason_of(ValueError("x" * 3_000_000))
    assert reason.endswith("x... (3,000,012 characters)")
    assert len(reason) < 2 * MAX_REASON_CHARACTERS
