"""What pytest needs before anything else: eight virtual CPU devices, and the options of `pytest benchmarks`."""

import pytest

from benchmarks.machine import use_virtual_devices
from benchmarks.options import add_options

use_virtual_devices()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the options wherever pytest is started."""
    add_options(parser)
