"""Hybrid sharded data parallel: fsdp within a group of devices, data parallel between groups (Zhao et al. 2023,
"PyTorch FSDP", section 3.2.2).

Each group of devices along the fsdp axis holds one sharded copy of the weights and a shard of the batch. Within a
group the communication is that of fsdp.py, for the group's shard of the batch. Between groups it is

    dW[D_fsdp,F] -all_reduce(data)-> dW[D_fsdp,F], each weight, once a step, in `reduce_dtype`: after all
        microbatches, or with `reduce="layer"` each layer's in the backward loop (training/layer_reduction.py)

For P parameters and d groups of f devices, a device sends what fsdp sends over f devices within its group, and
2 P/f (d-1)/d elements a step to the other groups, over the slower links.
"""

from strategies import data, fsdp
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.sharding.layout import Layout
from strategies.step import Step
from strategies.strategy import Strategy

AXES = (*data.AXES, *fsdp.AXES)
LAYOUT = Layout(batch=AXES, shards=fsdp.AXES)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`. An axis absent from the mesh has size one."""
    return fsdp.build_over(AXES, LAYOUT, config, mesh, train, devices)


OPTIONS = (*fsdp.OPTIONS, "reduce")
HSDP = Strategy("hsdp", AXES, build, OPTIONS, LAYOUT)
