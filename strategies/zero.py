"""Data parallel whose devices share the optimizer's work: ZeRO stages 1 and 2 (Rajbhandari et al. 2020, section 5).

Each device holds all weights and its part of the batch, and of AdamW's moments just a part, cut as weight_shards.py
says. It updates that part of the weights, and the devices exchange what they updated:

    dW[D,F] -reduce_scatter(data)-> dW[D_data,F], each weight, in `reduce_dtype`: zero1 once a step, zero2 once a
        microbatch
    W[D_data,F] -all_gather(data)-> W[D,F], each weight once a step, in float32, after the update

For P parameters on n devices a device of zero1 sends 2 P (n-1)/n elements a step, as much as with data, and the loss
and the gradients' norm. With zero2 and M microbatches it is (M + 1) P (n-1)/n, and in return the gradients that it
accumulates are a part as well: whole they exist for one microbatch at a time. With one microbatch the two are the same.
"""

from functools import partial

from strategies import data
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step, Strategy
from strategies.training.train_step import assemble

AXES = data.AXES
LAYOUTS = {
    1: Layout(batch=AXES, updates=AXES),
    2: Layout(batch=AXES, updates=AXES, scatters_each=True),
}
"""Stages of ZeRO."""


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None, *, stage: int) -> Step:
    """Build the step of a stage of ZeRO. It follows from the layout alone (training/train_step.py)."""
    return assemble(config, mesh.over(AXES, devices), train, LAYOUTS[stage], Implementation())


OPTIONS = ("reduce_dtype",)
ZERO1 = Strategy("zero1", AXES, partial(build, stage=1), OPTIONS, LAYOUTS[1])
ZERO2 = Strategy("zero2", AXES, partial(build, stage=2), OPTIONS, LAYOUTS[2], microbatches=2)
