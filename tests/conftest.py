"""Tests are small programs compiled many times: half of that time is LLVM's optimisation, which no law depends on.

Nor does one depend on how many parts LLVM compiles side by side: one part takes a tenth less time than 32, and the
processes of the tests leave no core idle.
"""

import gc
import os

import jax

from benchmarks.machine import use_virtual_devices
from tests.processes import QUICK

use_virtual_devices()
jax.config.update("jax_platforms", "cpu")  # the meshes of the tests take eight devices, whatever accelerator is there
# No law depends on the line of code that an instruction is from, and to note it takes a twentieth of the time.
jax.config.update("jax_traceback_in_locations_limit", 0)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()
gc.set_threshold(10_000)  # traces are many small objects that live long, and looking through them again takes time
