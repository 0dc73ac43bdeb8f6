"""The strategies with a planted fault, and the program that measures them (`with_faulty_strategies.py`).

Environment variables choose what happens:

- SINGLE=NAME: the planted strategy NAME takes the place of `single`, `data` is a toy, too, and the rate of matmuls is a
  constant.
- ONCE=FOLDER: faults that happen once leave a mark in this folder.
"""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import pytest

import strategies
from strategies import STRATEGIES, Step, Strategy, registry
from tests.benchmarks.faults import FAULTS
from tests.benchmarks.short_blocks import shorten
from tests.benchmarks.toy_steps import toy


@functools.cache
def base(config: Any, mesh: Any, train: Any, devices: tuple[Any, ...]) -> Step:
    """The step of `data` that a toy step replaces parts of; its configuration and mesh are kept."""
    return STRATEGIES["data"].build(config, mesh, train, devices)


def plant(name: str, fault: Callable[[Step], Step]) -> Strategy:
    """A strategy on the meshes of `data` whose step is a toy step with a fault."""

    def build(config: Any, mesh: Any, train: Any, devices: Sequence[Any]) -> Step:
        return fault(toy(base(config, mesh, train, tuple(devices))))

    return Strategy(name, STRATEGIES["data"].axes, make_step=build)


PLANTED = {fault.__name__: plant(fault.__name__, fault) for fault in FAULTS}
TOYS = PLANTED | {name: plant(name, lambda step: step) for name in ("single", "data")}


def plant_all() -> None:
    """Register the planted strategies beside the real ones, before anything reads the registry."""
    offered = {**STRATEGIES, **PLANTED}
    name = os.environ.get("SINGLE")
    if name:
        offered |= {"single": TOYS[name], "data": TOYS["data"]}
    strategies.STRATEGIES = registry.STRATEGIES = MappingProxyType(offered)  # where `distinct_meshes` reads it
    shorten(pytest.MonkeyPatch())
    from benchmarks.run import machine  # imported now, so that it reads this registry

    if name:
        machine.matmul_flops_per_second = lambda dtype: 1e11


if __name__ == "__main__":
    from benchmarks.run.__main__ import main

    plant_all()
    sys.exit(main())
