"""Data parallel: each device holds all weights and its part of the batch (Li et al. 2020, "PyTorch Distributed").

    dW[D,F] -all_reduce(data)-> dW[D,F], each weight, once a step

A device sends 2 P (n-1)/n elements a step, for P parameters on n devices; and the loss.
"""

from functools import partial

import jax
from jax import lax
from jaxtyping import Array

from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.gpt import Weights
from strategies.mesh import Devices, MeshSpec
from strategies.step import Spread, Step, Strategy

AXES = ("data",)


def diverge(weights: Weights, axes: tuple[str, ...] = AXES) -> Weights:
    """From here on each device has a copy of its own, and so gradients of its own: no sum is made in passing."""
    return jax.tree.map(partial(lax.pcast, axis_name=axes, to="varying"), weights)


def all_reduce(loss: Array, grads: Weights, axes: tuple[str, ...] = AXES) -> tuple[Array, Weights]:
    """The sums over devices, after all microbatches."""
    return lax.psum((loss, grads), axes)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`."""
    device_mesh = mesh.over(AXES, devices)
    spread = Spread(batch_axes=AXES, microbatches=train.microbatches, enter=diverge, reduce=all_reduce)
    return assemble(config, device_mesh, train, spread)


DATA = Strategy("data", AXES, build)
