"""Parallelism strategies: many ways to train the same GPT on a mesh of devices.

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig

step = STRATEGIES["fsdp"].build(PRESETS["nano"], MeshSpec.parse("fsdp=8"), TrainConfig(batch_size=16))
state = step.init(jax.random.key(0))
state, metrics = step(state, step.place(tokens))  # tokens: int32 [batch_size, sequence + 1]
"""

import importlib
from typing import TYPE_CHECKING, Any

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.presets import PRESETS
from strategies.programs import require_program

if TYPE_CHECKING:
    from strategies.checking import Mismatch, check
    from strategies.checkpoints import CheckpointError
    from strategies.core.axis import Axis
    from strategies.mesh import MeshSpec
    from strategies.registry import KNOWN_AS, STRATEGIES, register
    from strategies.step import Implementation, State, Step
    from strategies.strategy import Strategy

__all__ = [
    "KNOWN_AS",
    "PRESETS",
    "STRATEGIES",
    "Axis",
    "CheckpointError",
    "GPTConfig",
    "Implementation",
    "Infeasible",
    "MeshSpec",
    "Mismatch",
    "State",
    "Step",
    "Strategy",
    "TrainConfig",
    "check",
    "register",
]

require_program("strategies")

# These need JAX. They are imported on first use, because `results` uses strategies.schema without JAX.
_HOMES = "registry", "core.axis", "mesh", "step", "checkpoints", "checking"
"""Modules with the other names. The registry comes first, because it adds the mesh axes of user-defined strategies."""


def __getattr__(name: str) -> Any:
    """Find a name that needs JAX, on its first use (PEP 562)."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"strategies.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
