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

from collections.abc import Callable
from functools import partial
from typing import Any

from jax import lax
from jaxtyping import Array

from strategies import data
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec, mark_varying
from strategies.model.gpt import Weights
from strategies.sharding.layout import Layout
from strategies.step import Differentiate, Implementation, Step, Strategy, autodiff
from strategies.training.train_step import assemble

AXES = data.AXES
LAYOUTS = {
    1: Layout(batch=AXES, updates="data"),
    2: Layout(batch=AXES, updates="data", scatters_each=True),
}
"""Stages of ZeRO."""


def scattered(differentiate: Differentiate, scatter: Callable[[Weights], Weights]) -> Differentiate:
    """The same, and of the sum of all devices' gradients this device's part."""

    def parts(*inputs: Any) -> tuple[Array, Weights]:
        loss, grads = differentiate(*inputs)
        return loss, scatter(grads)

    return parts


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None, *, stage: int) -> Step:
    """See `Strategy`."""
    layout, device_mesh = LAYOUTS[stage], mesh.over(AXES, devices)
    shards = layout.shards_of("data", config, mesh.sizes)
    scatter = partial(shards.map_weights, partial(shards.scatter, dtype=train.reduce_dtype))

    def reduce(loss: Array, grads: Weights) -> tuple[Array, Weights]:
        return lax.psum(loss, AXES), grads if layout.scatters_each else scatter(grads)

    how = Implementation(
        differentiate=scattered(autodiff, scatter) if layout.scatters_each else autodiff,
        prepare_params=partial(mark_varying, axes=AXES),
        reduce=reduce,
    )
    return assemble(config, device_mesh, train, layout, how)


OPTIONS = ("reduce_dtype",)
ZERO1 = Strategy("zero1", AXES, partial(build, stage=1), OPTIONS, LAYOUTS[1])
ZERO2 = Strategy("zero2", AXES, partial(build, stage=2), OPTIONS, LAYOUTS[2], microbatches=2)
