"""What pytest needs before anything else: the options of `pytest benchmarks`."""

import pytest

from benchmarks.arguments import add_options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the options wherever pytest is started."""
    add_options(parser)
