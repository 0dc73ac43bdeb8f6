"""Tensor parallel: every layer cut over the devices (Shoeybi et al. 2019, "Megatron-LM", section 3).

Column then row: the query, key, value and up matmuls are cut by their outputs (heads, mlp), the matmuls behind them
by their inputs, so that one sum completes each branch. Embedding and loss are cut over the vocabulary: the full
logits exist on no device.

    x[B,T,D] partial sums -all_reduce(tensor)-> x[B,T,D], two a layer forward (after attention, after the MLP)
    dx[B,T,D] partial sums -all_reduce(tensor)-> dx[B,T,D], two a layer backward, where x enters the cut matmuls
    the same once for the embedding forward, and once for the head backward
    for the loss, largest logit, sum of exponentials and target's logit of each token; the first two again backward

A device sends (4 L + 2) 2 B T D (n-1)/n elements a step in the compute dtype, for L layers on n devices; with
`remat="full"` L sums more, of the attention once again.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

from jax import lax
from jax.sharding import PartitionSpec as P

from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.gpt import Hooks
from strategies.mesh import Devices, MeshSpec
from strategies.step import Spread, Step, Strategy, require_divides

AXES = ("tensor",)
SPLIT = {"heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
"""Which dims of the weights the axis splits."""


def vocab_hooks(axes: Sequence[str]) -> Hooks:
    """What completes an embedding and a loss cut over these axes."""
    axes = tuple(axes)
    return Hooks(
        vocab_start=lambda rows: rows * lax.axis_index(axes),
        vocab_sum=partial(lax.psum, axis_name=axes),
        vocab_max=partial(lax.pmax, axis_name=axes),
    )


def hooks(vocab_axes: Sequence[str]) -> Hooks:
    """What completes a layer cut over `tensor` besides."""
    return dataclasses.replace(vocab_hooks(vocab_axes), sum=partial(lax.psum, axis_name="tensor"))


def require_fit(config: GPTConfig, size: int) -> None:
    """Refuse an axis that does not divide what it is to split."""
    require_divides("tensor", size, heads=config.heads, mlp=config.mlp_dim)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`."""
    device_mesh = mesh.over(AXES, devices)
    require_fit(config, mesh.size)
    spread = Spread(
        spec=lambda dims: P(*map(SPLIT.get, dims)),
        vocab_shards=mesh.size,
        hooks=hooks(AXES),
        microbatches=train.microbatches,
    )
    return assemble(config, device_mesh, train, spread)


TENSOR = Strategy("tensor", AXES, build)
