"""The examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "conftest"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    """What a docstring shows is what happens."""
    assert doctest.testmod(importlib.import_module(f"benchmarks.{name}")).failed == 0
