"""Tests are small programs compiled many times: half of that time is LLVM's optimisation, which no law depends on."""

import gc
import os

import jax

from benchmarks.machine import use_virtual_devices

use_virtual_devices()
jax.config.update("jax_platforms", "cpu")  # the meshes of the tests take eight devices, whatever accelerator is there
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
gc.set_threshold(10_000)  # traces are many small objects that live long, and looking through them again takes time
