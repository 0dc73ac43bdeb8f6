"""Tests are small programs compiled many times: half of that time is LLVM's optimisation, which no law depends on.

Nor does one depend on how many parts LLVM compiles side by side: one part takes a tenth less time than 32, and the
processes of the tests leave no core idle.
"""

import gc
import os
import signal
from collections.abc import Iterator

import jax
import pytest

from benchmarks.timing.machine import use_virtual_devices
from tests.processes import QUICK

use_virtual_devices()
jax.config.update("jax_platforms", "cpu")  # the meshes of the tests take eight devices, whatever accelerator is there
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()
gc.set_threshold(10_000)  # traces are many small objects that live long, and looking through them again takes time


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C is heard, whether or not the parent of this process ignores it, as it does in a script's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
