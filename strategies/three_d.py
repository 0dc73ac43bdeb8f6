"""3D parallel: any product of data (or fsdp, or hsdp), pipeline, context and tensor, composed of those strategies.

Data, pipeline and tensor together are "PTD-P" (Narayanan et al. 2021, section 3). Llama 3 was trained with fsdp and
context as well (Llama Team 2024, section 3.3.2). Each axis splits what the others leave whole:

    data, fsdp   the batch
    pipeline     layers, and the vocabulary
    context      the tokens of each sequence
    tensor       heads and features of each layer, the vocabulary once more, and between matmuls the tokens once more
    fsdp         each weight that pipeline and tensor have split, along another dim where the weight has one

Each axis communicates as its own strategy does, for its shard of batch, layers, tokens and features:

    for each microbatch, and each layer of the stage:
    W[D_fsdp,F_tensor] -all_gather(fsdp)-> W[D,F_tensor], again backward
    dW[D,F_tensor] -reduce_scatter(fsdp)-> dW[D_fsdp,F_tensor]
    x[b,T_(context,tensor),D] -all_gather(tensor)-> x[b,T_context,D]; partial sums -reduce_scatter(tensor)-> back
    q, k, v[b,T_context,A_tensor] -all_to_all(context)-> q, k, v[b,T,A_(tensor,context)], and back; or a ring
    for each microbatch:
    W[V_(pipeline,tensor),D_fsdp] -all_gather(fsdp)-> W[V_(pipeline,tensor),D], for the embedding, and for the head
    x[b,T_(context,tensor),D] -permute(pipeline)-> the next stage, dx to the previous one
    embeddings, and three numbers a token for the loss -all_reduce(pipeline x tensor)-> every device of these axes
    once a step, in `reduce_dtype`, each device for its fsdp shard:
    dW[D] -all_reduce(tensor)-> dW[D], weights that tensor does not split; the last norm -all_reduce(pipeline)-> as well
    dW[D_fsdp,F_tensor] -all_reduce(data x context)-> dW[D_fsdp,F_tensor], each weight

For P parameters on d x f x p x c x t devices, the formulas in those files hold with P / pt for P, B / df for B, T / c
for T and L / p for L, and in the attention of context.py with A / t for A. Over the n = dc replicas a device sends
2 P / fpt (n-1)/n elements a step.

Without pipeline stages there is no schedule: gradients are accumulated over microbatches, as in fsdp.py and tensor.py.

With `gather="layer"` fsdp gathers weights for every microbatch, and a pipeline has many of them. With `gather="step"`
it gathers all weights before the first microbatch, and scatters the accumulated gradients after the last. With pipeline
stages `context_attention` has no "ring": XLA's permutes wait for all devices of the mesh, but stages run
their layers at different times.
"""

from dataclasses import replace

from jaxtyping import Array

from strategies import context, data, fsdp, pipeline, tensor
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import Devices, MeshSpec, platform_of
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.weights import Weights
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step
from strategies.strategy import Strategy
from strategies.training.train_step import assemble

AXES = (*data.AXES, *fsdp.AXES, *pipeline.AXES, *context.AXES, *tensor.AXES)
LAYOUT = Layout(
    batch=(*data.AXES, *fsdp.AXES),
    tokens=context.AXES,
    dims={
        "layers": pipeline.AXES,
        "head_features": tensor.AXES,
        "mlp": tensor.AXES,
        "vocab": (*pipeline.AXES, *tensor.AXES),
    },
    shards=fsdp.AXES,
)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`. An axis absent from the mesh has size one."""
    device_mesh, layout = mesh.over(AXES, devices), LAYOUT.along(mesh.split_axes(AXES))
    stages, contexts, tensors = (mesh.sizes.get(axis, 1) for axis in ("pipeline", "context", "tensor"))
    train = context.resolve_context_attention(
        config, train, contexts, tensors=tensors, stages=stages, platform=platform_of(device_mesh.devices.flat[0])
    )
    tensor.require_fit(config, train, tensors, contexts)
    context.require_fit(config, train, contexts, tensors)
    sharded = Implementation()
    if layout.shards:
        require_regather(train, stages)
        shards = layout.shards_of(layout.shards, config, mesh.sizes)
        sharded = fsdp.implementation(shards, train, device_mesh)
    sequence_parallel = train.sequence_parallel and tensors > 1

    def prepare_params(weights: Weights) -> Weights:
        return sharded.prepare_params(tensor.mark_replicated_varying(weights, config) if sequence_parallel else weights)

    def reduce(loss: Array, grads: Weights) -> tuple[Array, Weights]:
        loss, grads = sharded.reduce(loss, grads)
        return loss, tensor.all_reduce(grads, config, train.reduce_dtype) if sequence_parallel else grads

    of_shards = {name: getattr(sharded.hooks, name) for name in ("gather", "head", "projected")}
    hooks = replace(_hooks(layout, sequence_parallel), **of_shards)
    implementation = replace(
        pipeline.implementation(config, train, stages),
        hooks=context.hooks(config, train, contexts, hooks),
        prepare_params=prepare_params,
        reduce=reduce,
    )
    return assemble(config, device_mesh, train, layout, implementation)


def _hooks(layout: Layout, sequence_parallel: bool) -> Hooks:
    """Hooks for the layers, the embedding and the loss, as the layout splits them over tensor and pipeline."""
    if "head_features" in layout.dims:
        return tensor.hooks(layout.dims["vocab"], sequence_parallel)
    return tensor.vocab_hooks(layout.dims["vocab"]) if "vocab" in layout.dims else ONE_DEVICE


def require_regather(train: TrainConfig, stages: int) -> None:
    """Refuse `regather=False` with pipeline stages, whose backward passes come many ticks after the forward passes.

    Raises:
        Infeasible: each stage would keep gathered weights for each microbatch in flight.
    """
    if stages > 1 and train.gather == "layer" and not train.regather:
        problem = (
            f"with regather=False pipeline={stages} stages keep gathered weights once for each microbatch in flight"
        )
        raise Infeasible(f"{problem}; use gather=step, which keeps them once")


OPTIONS = tuple(dict.fromkeys((*pipeline.OPTIONS, *tensor.OPTIONS, *context.OPTIONS, *fsdp.OPTIONS)))
THREE_D = Strategy("three_d", AXES, build, OPTIONS, LAYOUT, usual_axes=("data", "pipeline", "tensor"))
