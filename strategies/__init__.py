"""The strategies of meshmark: one GPT, many ways to spread it over a mesh of devices.

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig

step = STRATEGIES["fsdp"].build(PRESETS["nano"], MeshSpec.parse("fsdp=8"), TrainConfig(batch_size=16))
state = step.init(jax.random.key(0))
state, metrics = step(state, step.place(tokens))  # tokens: int32 [batch_size, sequence + 1]
"""

import importlib
from typing import TYPE_CHECKING, Any

import strategies.importing  # noqa: F401 (it acts while the rest is imported)

# isort: split
from strategies.config import PRESETS, GPTConfig, Infeasible, TrainConfig

if TYPE_CHECKING:
    from strategies.mesh import MeshSpec
    from strategies.registry import KNOWN_AS, STRATEGIES, register
    from strategies.sharding.layout import Layout
    from strategies.step import Implementation, State, Step, Strategy

__all__ = [
    "KNOWN_AS",
    "PRESETS",
    "STRATEGIES",
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
    "MeshSpec": "mesh",
    "Layout": "sharding.layout",
    "Implementation": "step",
    "State": "step",
    "Step": "step",
    "Strategy": "step",
}
"""The modules of the names that need JAX."""


def __getattr__(name: str) -> Any:
    """Load what needs JAX when it is first asked for (PEP 562): sizes and schedules are known without it.

    Raises:
        AttributeError: there is no such name.
    """
    if name not in _WITH_JAX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("strategies.registry")  # with the mesh axes of strategies of your own
    return getattr(importlib.import_module(f"strategies.{_WITH_JAX[name]}"), name)
