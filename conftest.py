"""What pytest needs before anything else: eight virtual CPU devices, and the options of `pytest benchmarks`."""

import os

import jax
import pytest

from benchmarks.options import add_options

VIRTUAL_DEVICES = 8

# Before any backend starts, for that fixes the count. It does not touch accelerators, and a count that is set wins.
_by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
if not _by_flag and "JAX_NUM_CPU_DEVICES" not in os.environ:
    jax.config.update("jax_num_cpu_devices", VIRTUAL_DEVICES)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the options wherever pytest is started."""
    add_options(parser)
