"""The registry of strategies: those of meshmark, and those of your own that `register` adds."""

import importlib
import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType

from strategies.auto import AUTO
from strategies.context import CONTEXT
from strategies.data import DATA
from strategies.fsdp import FSDP
from strategies.hsdp import HSDP
from strategies.mesh import AXES
from strategies.names import Named
from strategies.pipeline import PIPELINE
from strategies.single import SINGLE
from strategies.step import Strategy
from strategies.tensor import TENSOR
from strategies.three_d import THREE_D
from strategies.zero import ZERO1, ZERO2

MODULES = "MESHMARK_STRATEGIES"
"""The environment variable that names modules, separated by commas, which register strategies of their own."""
KNOWN_AS = {
    "zero3": "fsdp",
    "ddp": "data",
    "dp": "data",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "3d": "three_d",
}
"""Names that other frameworks use."""

_BUILT_IN = SINGLE, DATA, ZERO1, ZERO2, FSDP, HSDP, TENSOR, CONTEXT, PIPELINE, THREE_D, AUTO
_registered = Named("strategy", {strategy.name: strategy for strategy in _BUILT_IN}, KNOWN_AS)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(_registered)
"""Strategies by name."""


def register(strategy: Strategy) -> Strategy:
    """Add a strategy of your own to `STRATEGIES`, and its mesh axes to those that a mesh may have, as the inner ones.

    Do so in a module that the environment variable `MESHMARK_STRATEGIES` names: every process imports it in time.

    Raises:
        ValueError: the name is taken, or an axis has a name that a mesh or a column cannot have.
    """
    if strategy.name in STRATEGIES or strategy.name in KNOWN_AS:
        raise ValueError(f"there is a strategy {strategy.name!r}; give yours another name")
    for axis in strategy.axes:
        if not re.fullmatch("[a-z]+", axis) or axis == "several":
            raise ValueError(f"{axis!r} cannot be a mesh axis; take lower-case letters alone, and not 'several'")
    AXES.extend(axis for axis in strategy.axes if axis not in AXES)
    _registered[strategy.name] = strategy
    return strategy


def import_others() -> Iterator[ModuleType]:
    """Import the modules that the environment names, which register strategies of their own.

    Raises:
        ValueError: one of them cannot be imported.
    """
    for name in filter(None, os.environ.get(MODULES, "").split(",")):
        try:
            yield importlib.import_module(name)
        except ImportError as error:
            problem = f"{MODULES} names {name!r}, which cannot be imported ({error})"
            raise ValueError(f"{problem}; name modules that are on PYTHONPATH") from error


OTHERS = tuple(import_others())
