"""The combination: any product of data (or fsdp or hsdp), pipeline, context and tensor, by composing the strategies.

TODO
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies import context, data, fsdp, mesh, pipeline, tensor
from strategies.assemble import assemble
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.gpt import Weights
from strategies.mesh import Devices, MeshSpec
from strategies.shards import Shards
from strategies.step import Spread, Step, Strategy

AXES = mesh.AXES
ALIKE = (*data.AXES, *context.AXES)
"""The axes along which devices hold the same weights, each for its own tokens."""
VOCAB_AXES = (*pipeline.AXES, *tensor.AXES)
SPLIT = {**pipeline.SPLIT, **tensor.SPLIT, "vocab": VOCAB_AXES}


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`. An axis that the mesh leaves out has size one."""
    device_mesh = mesh.over(AXES, devices)
    shards, stages, contexts, tensors = (mesh.sizes.get(axis, 1) for axis in AXES[1:])
    attending = context.attention(train, stages) if contexts > 1 else train
    tensor.require_fit(config, train, tensors, contexts)
    context.require_fit(config, attending, contexts, tensors)
    pipe = pipeline.piped(config, train, stages)
    group = Spread()
    if shards > 1:
        group = fsdp.spread(Shards("fsdp", shards, config, cut(stages, tensors)), train)
    hooks = replace(tensor.hooks(VOCAB_AXES, train.sequence_parallel), gather=group.hooks.gather)
    spread = Spread(
        spec=lambda dims: both(P(*map(SPLIT.get, dims)), group.spec(dims)),
        batch_axes=(*data.AXES, *group.batch_axes),
        vocab_shards=stages * tensors,
        places=pipe.places,
        hooks=context.hooks(attending, contexts, hooks),
        differentiate=tensor.diverging(pipe.differentiate, config) if train.sequence_parallel else pipe.differentiate,
        enter=lambda weights: group.enter(data.diverge(weights, ALIKE)),
        reduce=lambda loss, grads: data.all_reduce(*group.reduce(loss, grads), ALIKE),
    )
    return assemble(config, device_mesh, train, spread)


def cut(stages: int, tensors: int) -> dict[str, int]:
    """Dims of the weights that pipeline and tensor cut, and into how many parts."""
    return {"vocab": stages * tensors, **dict.fromkeys(("heads", "mlp"), tensors)}


def both(outer: P, inner: P) -> P:
    """Split by one, and each part by the other.

    >>> both(P("pipeline", None, "tensor"), P(None, None, "fsdp"))
    PartitionSpec('pipeline', None, ('tensor', 'fsdp'))
    """
    return P(*(tuple(jax.tree.leaves(axes)) or None for axes in zip_longest(outer, inner)))


OPTIONS = (*pipeline.OPTIONS, *tensor.OPTIONS, *context.OPTIONS, *fsdp.OPTIONS)
THREE_D = Strategy("three_d", AXES, build, OPTIONS)
