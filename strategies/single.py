"""One device: the reference that every other strategy must equal. It communicates nothing."""

from collections.abc import Sequence

import jax

from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import MeshSpec
from strategies.step import Spread, Step, Strategy, require_divides

AXES = ("data",)


def build(
    config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Sequence[jax.Device] | None = None
) -> Step:
    """See `Strategy`. The mesh is data=1."""
    require_divides("data", mesh.size, devices=1)
    return assemble(config, mesh.over(AXES, devices), train, Spread(microbatches=train.microbatches))


SINGLE = Strategy("single", AXES, build)
