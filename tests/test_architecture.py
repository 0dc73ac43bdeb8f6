"""The order of packages: strategies -> benchmarks -> results, no import cycles, and every example works.

A room is a folder of one of the three, such as `strategies/model`. A module that lies beside the rooms is a room of its
own.
"""

import ast
import doctest
import graphlib
import importlib
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = "strategies", "benchmarks", "results"
MODULES = sorted(path.relative_to(ROOT) for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
NAMES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
COMMANDS = "benchmarks.cli", "benchmarks.cases.columns"
"""What all commands share, and the table of columns: of `benchmarks`, `results` may import these alone."""
LIGHT = (
    *("strategies.config", "strategies.gpt_config", "strategies.gpt_requirements"),
    *("strategies.infeasible", "strategies.names", "strategies.presets", "strategies.programs", "strategies.schema"),
    *("benchmarks.devices.chips", "benchmarks.devices.topology"),
)
"""What it may import besides itself and the standard library."""
SHARED = "benchmarks/__init__.py", "benchmarks/cli/*.py", "benchmarks/cases/__init__.py", "benchmarks/cases/columns.py"
SCHEMA = "strategies.schema", "strategies.files"
"""How files are read and checked: of `strategies`, `results` may import these alone; they need no JAX."""
FORBIDDEN = {
    "strategies": {"benchmarks", "results", "pytest", "pandas", "seaborn", "matplotlib"},
    "benchmarks": {"results", "pandas", "seaborn", "matplotlib"},
    "results": {"strategies", "benchmarks", "jax", "jaxlib", "flax", "optax"},
}
CONFIGS = "strategies.config", "strategies.gpt_config", "strategies.gpt_requirements"
MODEL = (*CONFIGS, "strategies.infeasible", "strategies.backends.backend", "strategies.model")
"""All that the model may know of the strategies: sizes, which kernel the devices have, and its own parts."""
KERNELS = (*MODEL[:-1], "strategies.model.attention", "strategies.model.pallas")
"""All that the kernels of attention and of Pallas may know."""


def imported(path):
    """Every module that a file imports, in full."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} imports relatively"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in NAMES else node.module for name in names)


@cache
def arrows():
    """Each import of a module of ours by another, also those inside functions and of types alone."""
    return {(name, other) for name, path in NAMES.items() for other in imported(path) if other in NAMES}


def room(name):
    """Where a module of ours lies."""
    above, _, _ = name.rpartition(".")
    return name if NAMES[name].name == "__init__.py" or above in FLOORS else above


def test_nothing_imports_against_the_arrows():
    """A package imports those before it, never those after it; `results` needs no JAX, `strategies` no harness."""
    for path in MODULES:
        others = {name.split(".")[0] for name in imported(path) if not name.startswith((*COMMANDS, *SCHEMA))}
        assert not others & FORBIDDEN[path.parts[0]], path


def test_packages_have_no_import_cycles():
    """Of two packages at most one imports the other, directly or through others: graphlib names a cycle."""
    uses = {room(name): set() for name in NAMES}
    for name, other in arrows():
        uses[room(name)] |= {room(other)} - {room(name)}
    order = [*graphlib.TopologicalSorter(uses).static_order()]
    assert order.index("strategies.model") < order.index("strategies.core") < order.index("strategies")
    assert order.index("strategies") < order.index("benchmarks.cluster") < order.index("benchmarks.run")


def test_modules_have_no_import_cycles():
    """Nor do the modules of a package: an import inside a function is late for its time, never for a cycle."""
    uses = {name: set() for name in NAMES}
    for name, other in arrows():
        uses[name] |= {other} - {name}
    graphlib.TopologicalSorter(uses).prepare()


@pytest.mark.parametrize("path", [path for path in MODULES if any(map(path.match, SHARED))], ids=str)
def test_what_commands_share_needs_no_jax(path):
    """So `results` runs where JAX is not installed, and a command that is refused is refused at once.

    A test of each command's help holds that the modules in `LIGHT` need none either.
    """
    names = {name for name in imported(path) if not name.startswith((*COMMANDS, *LIGHT))}
    types = {"pytest"} if path.name == "options.py" else set()
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | types


@pytest.mark.parametrize("path", sorted((ROOT / "strategies" / "model").rglob("*.py")), ids=lambda path: path.stem)
def test_the_model_knows_no_strategy(path):
    """One GPT for all: it imports no strategy, no mesh and no step. Kernels import nothing of the GPT."""
    may = KERNELS if path.parent.name in ("attention", "pallas") else MODEL
    ours = [name for name in imported(path) if name in NAMES]
    assert [name for name in ours if not name.startswith(may)] == []


@pytest.mark.parametrize("path", [path for path in MODULES if ">>>" in (ROOT / path).read_text()], ids=str)
def test_examples_in_docstrings_work(path):
    """What a docstring shows is what happens."""
    outcome = doctest.testmod(importlib.import_module(".".join(path.with_suffix("").parts)))
    assert outcome.attempted > 0
    assert outcome.failed == 0
