"""The combination: any product of data (or fsdp, or hsdp), pipeline, context and tensor, by composing the strategies.

That of data, pipeline and tensor is "PTD-P" (Narayanan et al. 2021, section 3); with fsdp and context it is what Llama
3 was trained with (Llama Team 2024, section 3.3.2). Each axis splits what those before it have left:

    data, fsdp   sequences
    pipeline     layers, and the vocabulary
    context      tokens of each sequence
    tensor       heads and features of each layer, the vocabulary once more, and between matmuls the tokens once more

and fsdp cuts every weight that pipeline and tensor have cut, along another dim where it has one. So each axis
communicates as its strategy's file says, for the part of the sequences, layers, tokens and features that is left:

    each microbatch, each layer of the stage (fsdp.py), and for each microbatch what embedding and head use:
    W[D_fsdp,F_tensor] -all_gather(fsdp)-> W[D,F_tensor], and again backward, but for embedding and head
    dW[D,F_tensor] -reduce_scatter(fsdp)-> dW[D_fsdp,F_tensor]
    x[b,T_context,tensor,D] -all_gather(tensor)-> x[b,T_context,D], reduced and scattered alike (tensor.py)
    q, k, v[b,T_context,D_tensor] -all_to_all(context)-> q, k, v[b,T,D_tensor,context], or around a ring (context.py)
    x[b,T_context,tensor,D] -permute(pipeline)-> the next stage (pipeline.py)
    partial embeddings and sums of the loss -all_reduce(pipeline x tensor)-> the whole
    once a step:
    dW[D] -all_reduce(tensor)-> dW[D], parts of fsdp of what tensor does not cut; of the last norm also over pipeline
    dW[D_fsdp,F_tensor] -all_reduce(data x context)-> dW[D_fsdp,F_tensor], each weight, in float32

Gathering once for each microbatch costs a pipeline more than others, for it has many: `gather="step"` gathers all
weights before the first, and scatters the sums of gradients after the last. With stages attention goes from all to all
and not around a ring, which on CPUs all stages would have to enter at once.
"""

import math
from dataclasses import replace
from itertools import zip_longest

import jax
from jax.sharding import PartitionSpec as P

from strategies import context, data, fsdp, mesh, pipeline, tensor
from strategies.assemble import assemble
from strategies.config import GPTConfig, Infeasible, TrainConfig
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
        _require_regather(train, stages)
        cut = {dim: math.prod(mesh.sizes.get(axis, 1) for axis in jax.tree.leaves(axes)) for dim, axes in SPLIT.items()}
        group = fsdp.spread(Shards("fsdp", shards, config, cut), train)
    sequence_parallel = train.sequence_parallel and tensors > 1  # else remat="full" would compute the logits again
    hooks = replace(tensor.hooks(VOCAB_AXES, sequence_parallel), gather=group.hooks.gather)
    spread = Spread(
        spec=lambda dims: both(P(*map(SPLIT.get, dims)), group.spec(dims)),
        batch_axes=(*data.AXES, *group.batch_axes),
        vocab_shards=stages * tensors,
        places=pipe.places,
        hooks=context.hooks(attending, contexts, hooks),
        differentiate=tensor.diverging(pipe.differentiate, config) if sequence_parallel else pipe.differentiate,
        enter=lambda weights: group.enter(data.diverge(weights, ALIKE)),
        reduce=lambda loss, grads: data.all_reduce(*group.reduce(loss, grads), ALIKE),
    )
    return assemble(config, device_mesh, train, spread)


def _require_regather(train: TrainConfig, stages: int) -> None:
    if stages > 1 and train.gather == "layer" and not train.regather:
        kept = "keep gathered weights once for each microbatch in flight"
        raise Infeasible(f"with regather=False pipeline={stages} stages {kept}; use gather=step, which keeps them once")


def both(outer: P, inner: P) -> P:
    """Split by one, and each part by the other.

    >>> both(P("pipeline", None, "tensor"), P(None, None, "fsdp"))
    P('pipeline', None, ('tensor', 'fsdp'))
    """
    return P(*(tuple(jax.tree.leaves(axes)) or None for axes in zip_longest(outer, inner)))


OPTIONS = (*pipeline.OPTIONS, *tensor.OPTIONS, *context.OPTIONS, *fsdp.OPTIONS)
THREE_D = Strategy("three_d", AXES, build, OPTIONS, usual_axes=("data", "pipeline", "tensor"))
