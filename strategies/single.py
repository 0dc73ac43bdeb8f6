"""One device: the reference that every other strategy must equal. It has no communication."""

from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step
from strategies.strategy import Strategy
from strategies.training.train_step import assemble

AXES = ("data",)
LAYOUT = Layout()


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`; the mesh must be data=1."""
    if str(mesh) != "data=1":
        raise Infeasible(f"single runs on one device; its mesh is data=1, not {mesh}")
    return assemble(config, mesh.over(AXES, devices), train, LAYOUT, Implementation())


SINGLE = Strategy("single", AXES, build, layout=LAYOUT, most_devices=1)
