"""The parsers of the commands that load JAX or pytest: without them, for a help is printed at once."""

import argparse
import os
from pathlib import Path
from typing import get_args

from benchmarks.arguments import (
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

COMPILED = 8
BUDGET_SECONDS = 600.0
PYTEST = """All options of pytest and pytest-benchmark can be given, too, such as --benchmark-json FILE, which writes
the report, and -k EXPRESSION. `pytest --pyargs benchmarks --help` describes them."""


def measure() -> argparse.ArgumentParser:
    """Of `meshmark measure`, for its help alone: pytest reads the options, with its own."""
    about = "Time strategies on the devices that are there."
    parser = argparse.ArgumentParser(program("pytest benchmarks"), description=about, epilog=PYTEST)
    declare_measuring(parser.add_argument)
    declare_processes(parser.add_argument_group("several processes, started with the same options each").add_argument)
    return parser


def compile_cases() -> argparse.ArgumentParser:
    """Of `meshmark compile`."""
    about = "What one step would do and take on devices that are not there, as their compiler says."
    parser = argparse.ArgumentParser(program("python -m benchmarks.compile"), description=about)
    parser.add_argument("--topology", type=topology, required=True, help="such as v5p:4x4x4, h100:2x8 or cpu:64")
    declare(parser.add_argument)
    return parser


def search() -> argparse.ArgumentParser:
    """Of `meshmark search`."""
    about = "What could train a model on devices that are not there: all by formulas, and the best compiled."
    parser = argparse.ArgumentParser(program("python -m benchmarks.feasibility"), description=about)
    add, several = parser.add_argument, {"action": "extend", "default": []}
    add("--topology", type=topology, required=True, metavar="TOPOLOGY", help="such as v5p:4x4x4, h100:8x8 or cpu:16")
    add("--chip", choices=tuple(CHIPS), help="whose figures count of cpu:N; others have their own")
    declare_model(add)
    add("--batch-size", type=count, required=True, metavar="N", help="sequences")
    add("--dtype", choices=get_args(Dtype), default="bfloat16", help="of the computation; default: %(default)s")
    add("--strategy", type=commas(strategy), metavar="NAME,...", **several, help="default: all by hand")
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help="default: all; repeatable")
    add("--microbatches", type=commas(count), metavar="N,...", **several, help="default: 1, 2, 4, 8, times the stages")
    add("--remat", choices=get_args(Remat), action="append", default=[], help="default: each; repeatable")
    add("--option", type=option, metavar="NAME=VALUE,...", **several, help="default: each schedule and gather")
    declare_compiler(add)
    add("--compile", type=whole, metavar="N", help=f"the best; default: {COMPILED}, or none if no compiler is there")
    add("--time-budget", type=seconds, default=BUDGET_SECONDS, metavar="S", help="to compile; default: %(default)s")
    add("--workers", type=count, metavar="N", help="that compile at a time; default: as memory and cores allow")
    add("--cache", type=Path, default=usual_cache(), metavar="DIR", help="default: %(default)s")
    add("--again", action="store_true", help="ask the compiler whatever is kept, and keep what it says")
    add("--all", action="store_true", help="print every candidate")
    add("--json", type=Path, metavar="FILE", help="every candidate, for `python -m results.frontier`")
    return parser


def usual_cache() -> Path:
    """Where caches belong (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshmark", "compiled")
