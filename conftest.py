"""What pytest needs before anything else: the options of `pytest benchmarks`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the options wherever pytest is started."""
    # Here, for `pytest-benchmark compare` loads this file before pytest prepares the package to be imported.
    from benchmarks.cli.options import add_options

    add_options(parser)
