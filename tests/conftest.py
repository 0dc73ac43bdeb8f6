"""Set up JAX for the tests: eight virtual CPU devices, and compilation without LLVM's optimisation.

Tests compile many small programs, and half of that time is LLVM's optimisation, on which no law depends. Nor does one
depend on how many parts LLVM compiles side by side: one part takes a tenth less time than 32, and the processes of the
tests leave no core idle.
"""

import gc
import os
import signal
from collections.abc import Iterator

import jax
import pytest
from hypothesis import settings

from benchmarks.timing.machine import use_virtual_devices
from tests.processes import QUICK

settings.register_profile("tests", deadline=None)  # an example takes as long as it takes on a busy machine
settings.load_profile("tests")
use_virtual_devices()
jax.config.update("jax_platforms", "cpu")  # tests need eight devices, whatever accelerator is there
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()
gc.set_threshold(10_000)  # traces are many long-lived objects, which take long to scan


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Handle Ctrl-C even if the parent process ignores it, as a script's background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
