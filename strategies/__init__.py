"""Parallelism strategies: many ways to train the same GPT on a mesh of devices.

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig

step = STRATEGIES["fsdp"].build(PRESETS["nano"], MeshSpec.parse("fsdp=8"), TrainConfig(batch_size=16))
state = step.init(jax.random.key(0))
state, metrics = step(state, step.place(tokens))  # tokens: int32 [batch_size, sequence + 1]
"""

import importlib
from typing import TYPE_CHECKING, Any

from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.presets import PRESETS

if TYPE_CHECKING:
    from strategies.checkpoints.info import CheckpointError
    from strategies.mesh import MeshSpec
    from strategies.registry import KNOWN_AS, STRATEGIES, register
    from strategies.sharding.layout import Layout
    from strategies.step import Implementation, State, Step
    from strategies.strategy import Strategy

__all__ = [
    "KNOWN_AS",
    "PRESETS",
    "STRATEGIES",
    "CheckpointError",
    "GPTConfig",
    "Implementation",
    "Infeasible",
    "Layout",
    "MeshSpec",
    "State",
    "Step",
    "Strategy",
    "TrainConfig",
    "register",
]

_WITH_JAX = {
    "KNOWN_AS": "registry",
    "STRATEGIES": "registry",
    "register": "registry",
    "CheckpointError": "checkpoints.info",
    "MeshSpec": "mesh",
    "Layout": "sharding.layout",
    "Implementation": "step",
    "State": "step",
    "Step": "step",
    "Strategy": "strategy",
}
"""Modules of the public names that need JAX. They are imported on first use."""


def __getattr__(name: str) -> Any:
    """Import a name that needs JAX on first use (PEP 562). Model sizes and pipeline schedules need no JAX.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in _WITH_JAX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("strategies.registry")  # registers the mesh axes of user-defined strategies
    return getattr(importlib.import_module(f"strategies.{_WITH_JAX[name]}"), name)
