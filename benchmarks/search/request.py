"""The options of the search: their parser, the search space and the chip that they name."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from benchmarks.arguments import commas, count, declare_compiler, declare_model, seconds, whole
from benchmarks.commandline.main import program
from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.devices.placement import device_count
from benchmarks.options import (
    mesh,
    model,
    option,
    require_all_devices,
    require_options,
    strategy,
    topology,
    unique,
    values_of,
)
from benchmarks.search import cache
from benchmarks.search.candidates import SearchSpace
from strategies.config import Dtype, Remat

DEFAULT_COMPILED = 8
BUDGET_SECONDS = 600.0


def parser(description: str) -> argparse.ArgumentParser:
    """The command-line parser of the search."""
    parser = argparse.ArgumentParser(program("python -m benchmarks.feasibility"), description=description)
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
    add("--cache", type=Path, default=cache.default_folder(), metavar="DIR", help=folder)
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
    names = "strategies; default: all hand-written ones"
    add("--strategy", type=commas(strategy), metavar="NAME,...", **several, help=names)
    meshes = "such as data=2,tensor=4; default: all; repeatable"
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help=meshes)
    parts = "per batch; default: 1, 2, 4 and 8 per pipeline stage"
    add("--microbatches", type=commas(count), metavar="N,...", **several, help=parts)
    remats = "what the backward pass recomputes; default: each; repeatable"
    add("--remat", choices=get_args(Remat), action="append", default=[], help=remats)
    options = "options of strategies; default: each schedule and gather"
    add("--option", type=option, metavar="NAME=VALUE,...", **several, help=options)


def search_space(asked: argparse.Namespace) -> SearchSpace:
    """The search space that the options ask for.

    Raises:
        ValueError: sizes that no model has, a mesh of another number of devices, no candidate, or an unused option.
    """
    name, config = model(asked)
    require_all_devices(asked.topology, asked.mesh)
    space = SearchSpace(
        asked.topology,
        name,
        config,
        asked.batch_size,
        asked.dtype,
        unique(asked.strategy),
        unique(asked.mesh),
        unique(asked.microbatches),
        unique(asked.remat) or get_args(Remat),
        values_of(asked.option),
        tuple(dict(asked.compiler_option).items()),
    )
    if not any(True for _ in space.strategy_meshes()):
        devices = device_count(asked.topology)
        raise ValueError(f"no candidate: no selected strategy has such a mesh of {devices} devices")
    require_options(space.options, space.cases())
    return space


def chosen_chip(asked: argparse.Namespace) -> Chip:
    """The chip whose specifications apply.

    Raises:
        ValueError: virtual devices without --chip, or --chip for a topology that has its own specifications.
    """
    own = asked.topology.chip
    if own and asked.chip:
        virtual = f"cpu:{device_count(asked.topology)} as {asked.chip}"
        raise ValueError(f"{asked.topology} has its own specifications; leave --chip out, or take {virtual}")
    if own is None and asked.chip is None:
        raise ValueError(f"{asked.topology} has no specifications to rank by; name a chip, such as --chip v5e")
    return own or CHIPS[asked.chip]
