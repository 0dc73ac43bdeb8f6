"""The registry of strategies: built-in ones, and user-defined ones added by `register`."""

import importlib
import os
from collections.abc import Mapping
from types import MappingProxyType

from strategies.arguments import require_instance
from strategies.auto import AUTO
from strategies.context import CONTEXT
from strategies.data import DATA
from strategies.expert import EXPERT
from strategies.explicit import EXPLICIT
from strategies.fsdp import FSDP
from strategies.gpt_config import GPTConfig
from strategies.hsdp import HSDP
from strategies.mesh import MeshSpec, add_axes
from strategies.names import Named, in_a_line
from strategies.pipeline import PIPELINE
from strategies.single import SINGLE
from strategies.strategy import Strategy
from strategies.tensor import TENSOR
from strategies.three_d import THREE_D
from strategies.zero import ZERO1, ZERO2

MODULES = "MESHMARK_STRATEGIES"
"""Environment variable with a comma-separated list of modules that register user-defined strategies."""
KNOWN_AS = {
    "zero3": "fsdp",
    "ddp": "data",
    "dp": "data",
    "tp": "tensor",
    "cp": "context",
    "ep": "expert",
    "pp": "pipeline",
    "3d": "three_d",
}
"""Names in other frameworks -> names of strategies."""


class NotImportable(ValueError):
    """A module that `MESHMARK_STRATEGIES` names cannot be imported. The message names it and the cause."""


BUILT_IN = SINGLE, DATA, ZERO1, ZERO2, FSDP, HSDP, TENSOR, CONTEXT, PIPELINE, THREE_D, AUTO, EXPERT, EXPLICIT
_registered = Named("strategy", {strategy.name: strategy for strategy in BUILT_IN}, KNOWN_AS)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(_registered)
"""All strategies by name, read-only."""


def register(strategy: Strategy) -> Strategy:
    """Add a user-defined strategy to `STRATEGIES`, and its new mesh axes to the existing ones (`mesh.add_axes`).

    Call it in a module that the environment variable `MESHMARK_STRATEGIES` names. Every process imports these modules
    with the registry, before it looks up a strategy.

    Raises:
        ValueError: it is not a strategy, the name is taken, its axes are out of order, or an axis has a name that a
            mesh or a column of a table cannot have.
    """
    require_instance(strategy, Strategy, "what is registered", ValueError)
    if strategy.name in STRATEGIES or strategy.name in KNOWN_AS:
        raise ValueError(f"a strategy {strategy.name!r} exists; choose another name")
    add_axes(strategy.axis_names)
    _registered[strategy.name] = strategy
    return strategy


def distinct_meshes(name: str, devices: int, config: GPTConfig | None = None) -> list[MeshSpec]:
    """A strategy's meshes of that many devices, without those on which it equals a simpler strategy.

    Compiler-partitioned strategies are not compared with others. For a model without the weights that an axis splits,
    such as experts, meshes with this axis are omitted, because it does what the data axis does.

    >>> [str(mesh) for mesh in distinct_meshes("hsdp", 8)]
    ['data=2,fsdp=4', 'data=4,fsdp=2']
    >>> [str(mesh) for mesh in distinct_meshes("auto", 4)]
    ['tensor=4', 'expert=4', 'fsdp=2,tensor=2', 'fsdp=2,expert=2', 'fsdp=4', 'data=2,expert=2', 'data=4']
    >>> [str(mesh) for mesh in distinct_meshes("zero1", 4)]
    ['expert=4', 'data=2,expert=2', 'data=4']
    """
    strategy = STRATEGIES[name]
    if devices == 1 and strategy.most_devices > 1:
        return []
    by_hand = [] if strategy.twins else [other for other in STRATEGIES.values() if not other.twins]
    simpler = [other for other in by_hand if set(other.axis_names) < set(strategy.axis_names)]
    idle = strategy.idle_axes(config) if config else set()
    meshes = (mesh for mesh in strategy.meshes(devices) if not idle & {*mesh.sizes})
    return [mesh for mesh in meshes if not any(strategy.equals(other, mesh) for other in simpler)]


def import_others() -> None:
    """Import the modules that `MESHMARK_STRATEGIES` names; they register user-defined strategies."""
    for name in filter(None, os.environ.get(MODULES, "").split(",")):
        try:
            importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]
            way_out = "name modules that are on PYTHONPATH" if missing else f"fix it, or remove it from {MODULES}"
            problem = f"{MODULES} names {name!r}, which cannot be imported ({in_a_line(error)})"
            raise NotImportable(f"{problem}; {way_out}") from error


import_others()
