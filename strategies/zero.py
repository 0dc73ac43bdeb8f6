"""Data parallel with a sharded optimizer: ZeRO stages 1 and 2 (Rajbhandari et al. 2020, section 5).

Each device holds all weights, a shard of the batch, and a shard of AdamW's moments (sharding/weight_shards.py). It
updates its shard of the weights, and then all devices gather the updated weights:

    dW[D,F] -reduce_scatter(data)-> dW[D_data,F], each weight, in `reduce_dtype`: zero1 once a step, zero2 once a
        microbatch; after the backward pass, or with `reduce="layer"` each layer's in the backward loop
        (training/layer_reduction.py)
    W[D_data,F] -all_gather(data)-> W[D,F], each weight once a step, after the update; in float32, or with
        `master="float32"` in the compute dtype

For P parameters on n devices a device of zero1 sends 2 P (n-1)/n elements a step, as much as with data, and the loss
and the gradients' norm. A device of zero2 with M microbatches sends (M + 1) P (n-1)/n elements. In return it
accumulates only its shard of the gradients: full gradients exist for one microbatch at a time. With one microbatch
zero1 and zero2 are the same.
With `reduce="layer"` a device has full gradients of one layer at a time, of the embedding and of the head.

By default weights are float32, and so are their gradients. With `master="float32"` both are in the compute dtype, but
for vectors, and each device has a float32 shard of the weights beside its moments (training/sharded_update.py).
"""

from functools import partial

from strategies import data
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step
from strategies.strategy import Strategy
from strategies.training.train_step import assemble

AXES = data.AXES
LAYOUTS = {
    1: Layout(batch=AXES, updates=AXES),
    2: Layout(batch=AXES, updates=AXES, scatters_each=True),
}
"""The layout of each stage of ZeRO."""


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None, *, stage: int) -> Step:
    """Build the step of a ZeRO stage, 1 or 2. The other arguments and the errors are those of `Strategy.build`.

    The layout alone makes the step a ZeRO step (training/train_step.py).
    """
    return assemble(config, mesh.over(AXES, devices), train, LAYOUTS[stage], Implementation())


OPTIONS = "master", "reduce", "reduce_dtype"
ZERO1 = Strategy("zero1", AXES, partial(build, stage=1), OPTIONS, LAYOUTS[1])
ZERO2 = Strategy("zero2", AXES, partial(build, stage=2), OPTIONS, LAYOUTS[2], microbatches=2)
