"""Command-line parsers of the commands that load JAX or pytest. The parsers load neither: help is printed at once."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from benchmarks.arguments import (
    LISTED,
    commas,
    count,
    declare,
    declare_compiler,
    declare_measuring,
    declare_model,
    declare_processes,
    mesh,
    option,
    seconds,
    strategy,
    topology,
    whole,
)
from benchmarks.commandline.main import program
from benchmarks.devices.chips import CHIPS
from strategies.config import Dtype, Remat

DEFAULT_COMPILED = 8
BUDGET_SECONDS = 600.0
PYTEST = """The options of pytest and pytest-benchmark work too, such as --benchmark-json FILE, which writes the report,
and -k EXPRESSION. `pytest --pyargs benchmarks --help` describes them."""


def measure() -> argparse.ArgumentParser:
    """Of `meshmark measure`. It is used for the help alone: pytest parses the options, together with its own."""
    about = "Time strategies on the devices that are there."
    parser = argparse.ArgumentParser(program("pytest benchmarks"), description=about, epilog=PYTEST)
    declare_measuring(parser.add_argument)
    declare_processes(
        parser.add_argument_group("multi-process runs; start each process with the same options").add_argument
    )
    return parser


def compile_cases() -> argparse.ArgumentParser:
    """Of `meshmark compile`."""
    about = "Compile one step for devices that need not be there, and report what it computes, sends and holds."
    parser = argparse.ArgumentParser(program("python -m benchmarks.compile"), description=about)
    parser.add_argument("--topology", type=topology, required=True, help="such as v5p:4x4x4, h100:2x8 or cpu:64")
    declare(parser.add_argument)
    return parser


def search() -> argparse.ArgumentParser:
    """Of `meshmark search`."""
    about = "Search for strategies that can train a model on a topology: all by formulas, and the best compiled."
    parser = argparse.ArgumentParser(program("python -m benchmarks.feasibility"), description=about)
    add = parser.add_argument
    add("--topology", type=topology, required=True, metavar="TOPOLOGY", help="such as v5p:4x4x4, h100:8x8 or cpu:16")
    add("--chip", choices=tuple(CHIPS), help="the chip that the devices of cpu:N stand for")
    declare_model(add)
    _declare_space(add)
    declare_compiler(add)
    compiled = f"compile the N best; default: {DEFAULT_COMPILED}, or 0 if the compiler is not installed"
    add("--compile", type=whole, metavar="N", help=compiled)
    budget = "seconds for compiling; default: %(default)s"
    add("--time-budget", type=seconds, default=BUDGET_SECONDS, metavar="S", help=budget)
    add("--workers", type=count, metavar="N", help="processes that compile; default: as memory and cores allow")
    folder = "of compilation results; default: %(default)s"
    add("--cache", type=Path, default=default_cache(), metavar="DIR", help=folder)
    add("--again", action="store_true", help="compile again, and replace cached results")
    add("--all", action="store_true", help="print every candidate")
    add("--json", type=Path, metavar="FILE", help="write every candidate, for `python -m results.frontier`")
    return parser


def _declare_space(add: Callable[..., Any]) -> None:
    """Declare the options that restrict the search space."""
    several = {"action": "extend", "default": []}
    add("--batch-size", type=count, required=True, metavar="N", help="sequences in a global batch")
    dtype = "dtype of the computation; default: %(default)s"
    add("--dtype", choices=get_args(Dtype), default="bfloat16", help=dtype)
    names = f"strategies; default: all hand-written ones; {LISTED}"
    add("--strategy", type=commas(strategy), metavar="NAME,...", **several, help=names)
    meshes = "such as data=2,tensor=4; default: all; repeatable"
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help=meshes)
    parts = "per batch; default: 1, 2, 4 and 8 per pipeline stage"
    add("--microbatches", type=commas(count), metavar="N,...", **several, help=parts)
    remats = "what the backward pass recomputes; default: each; repeatable"
    add("--remat", choices=get_args(Remat), action="append", default=[], help=remats)
    options = "options of strategies; default: each schedule and gather"
    add("--option", type=option, metavar="NAME=VALUE,...", **several, help=options)


def default_cache() -> Path:
    """The user's cache folder (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshmark", "compiled")
