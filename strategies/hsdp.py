"""Hybrid sharded data parallel: fsdp inside a group of devices, data between the groups (Zhao et al. 2023, "PyTorch
FSDP", section 3.2.2).

A group of devices along the fsdp axis holds the weights once, and each group has its part of the batch. The
communication is that of fsdp.py inside a group, for the group's part of the batch, and

    dW[D_fsdp,F] -all_reduce(data)-> dW[D_fsdp,F], each weight in `reduce_dtype`, once a step

For P parameters, d groups of f devices: beside what fsdp sends over f devices, a device sends 2 P/f (d-1)/d elements a
step to the other groups, over the slower links.
"""

from strategies import data, fsdp
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.sharding.layout import Layout
from strategies.step import Step, Strategy

AXES = (*data.AXES, *fsdp.AXES)
LAYOUT = Layout(batch=AXES, shards=fsdp.AXES)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. An axis that the mesh leaves out has size one."""
    return fsdp.build_over(AXES, LAYOUT, config, mesh, train, devices)


HSDP = Strategy("hsdp", AXES, build, fsdp.OPTIONS, LAYOUT)
