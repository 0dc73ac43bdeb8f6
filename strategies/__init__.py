"""The strategies of meshmark: one GPT, many ways to spread it over a mesh of devices.

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig

step = STRATEGIES["fsdp"].build(PRESETS["nano"], MeshSpec.parse("fsdp=8"), TrainConfig(batch_size=16))
state = step.init(jax.random.key(0))
state, metrics = step(state, step.place(tokens))  # tokens: int32 [batch_size, sequence + 1]
"""

from collections.abc import Mapping
from types import MappingProxyType

import strategies.importing  # noqa: F401 (it acts while the rest is imported)

# isort: split
from strategies.auto import AUTO
from strategies.config import PRESETS, GPTConfig, Infeasible, TrainConfig
from strategies.context import CONTEXT
from strategies.data import DATA
from strategies.fsdp import FSDP
from strategies.hsdp import HSDP
from strategies.mesh import MeshSpec
from strategies.names import Named
from strategies.pipeline import PIPELINE
from strategies.sharding.layout import Layout
from strategies.single import SINGLE
from strategies.step import Implementation, State, Step, Strategy
from strategies.tensor import TENSOR
from strategies.three_d import THREE_D
from strategies.zero import ZERO1, ZERO2

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
]

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

REGISTERED = (SINGLE, DATA, ZERO1, ZERO2, FSDP, HSDP, TENSOR, CONTEXT, PIPELINE, THREE_D, AUTO)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    Named("strategy", {strategy.name: strategy for strategy in REGISTERED}, KNOWN_AS)
)
