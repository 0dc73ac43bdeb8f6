"""The plan of the house: imports follow strategies -> benchmarks -> results, and every example in a docstring works."""

import ast
import doctest
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = "strategies", "benchmarks", "results"
MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
COMMANDS = "benchmarks.commandline"
"""What all commands share: of `benchmarks`, `results` may import this alone; it needs the standard library only."""
FORBIDDEN = {
    "strategies": {"benchmarks", "results", "pytest", "pandas", "seaborn", "matplotlib"},
    "benchmarks": {"results", "pandas", "seaborn", "matplotlib"},
    "results": {"strategies", "benchmarks", "jax", "jaxlib", "flax", "optax"},
}
MODEL = {f"strategies.{name}" for name in ("config", "attention", "hooks", "loss")}
"""All that the model may know of the strategies: sizes, and its own parts."""


def imported(path):
    """Every module that a file imports, in full."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} imports relatively"
            yield node.module


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_nothing_imports_against_the_arrows(path):
    """A room knows those before it, never those behind it; `results` needs no JAX, `strategies` no harness."""
    others = {name.split(".")[0] for name in imported(path) if not name.startswith(COMMANDS)}
    assert not others & FORBIDDEN[path.parts[0]]


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.match("benchmarks/__init__.py") or path.match("commandline/*.py")],
    ids=str,
)
def test_what_commands_share_needs_the_standard_library_alone(path):
    """So `results` runs where JAX is not installed, and a command that is refused is refused at once."""
    names = {name for name in imported(path) if not name.startswith(COMMANDS)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["gpt", "attention", "hooks", "loss"])
def test_the_model_knows_no_strategy(name):
    """One GPT for all: it imports no strategy, no mesh and no step."""
    assert {module for module in imported(f"strategies/{name}.py") if module.startswith("strategies")} <= MODEL


@pytest.mark.parametrize("path", [path for path in MODULES if ">>>" in (ROOT / path).read_text()], ids=str)
def test_examples_in_docstrings_work(path):
    """What a docstring shows is what happens."""
    outcome = doctest.testmod(importlib.import_module(".".join(path.with_suffix("").parts)))
    assert outcome.attempted > 0
    assert outcome.failed == 0
