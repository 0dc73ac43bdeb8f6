"""The word for each bad end."""

import jax
import pytest

from benchmarks.failures import CompileError, Died, Mismatch, NonFinite, Recompiled, reason_of, status_of
from strategies import Infeasible

VMEM = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %fusion.1 = "
    "bf16[8,128]. Scoped allocation with size 17.19M and limit 16.00M exceeded scoped vmem limit by 1.19M."
)
"""A kernel takes too much of a core's own memory: the step is not too large for the device."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Infeasible("tensor=3 does not divide heads=8"), "infeasible"),
        (MemoryError(), "oom"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."), "oom"),
        (CompileError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"), "oom"),
        (CompileError(VMEM), "compile_error"),
        (CompileError("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: 262144"), "compile_error"),
        (jax.errors.JaxRuntimeError(VMEM), "error"),
        (CompileError("INTERNAL: no such instruction"), "compile_error"),
        (NonFinite("loss nan"), "nan_loss"),
        (Mismatch("loss 5 where one device has 4"), "mismatch"),
        (Died("2 processes died while it ran, the last of SIGKILL"), "oom"),
        (Died("2 processes died while it ran, the last of SIGABRT"), "error"),
        (Recompiled("compiled while it was timed"), "error"),
        (ValueError("anything else"), "error"),
    ],
    ids=repr,
)
def test_every_error_has_its_status(error: Exception, status: str) -> None:
    """A bad end has one word, and memory is blamed where memory was short, even while compiling."""
    assert status_of(error) == status


def test_reason_is_one_line() -> None:
    """A row's reason is what went wrong, without the rest of a compiler's page."""
    assert reason_of(CompileError("INTERNAL: no such instruction\nin line 7")) == "INTERNAL: no such instruction"
    assert reason_of(ZeroDivisionError("no weights")) == "ZeroDivisionError: no weights"
