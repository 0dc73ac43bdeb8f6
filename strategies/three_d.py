"""The combination: any product of data (or fsdp, or hsdp), pipeline, context and tensor, by composing the strategies.

That of data, pipeline and tensor is "PTD-P" (Narayanan et al. 2021, section 3); Llama 3 was trained with fsdp and
context besides (Llama Team 2024, section 3.3.2). Each axis splits what is left by the others:

    data, fsdp   the batch
    pipeline     layers, and the vocabulary
    context      the tokens of each sequence
    tensor       heads and features of each layer, the vocabulary again, and between matmuls the tokens again
    fsdp         each weight that pipeline and tensor have cut, along another dim where it has one

So each communicates as its own file says, for its part of batch, layers, tokens and features:

    for each microbatch, and each layer of the stage:
    W[D_fsdp,F_tensor] -all_gather(fsdp)-> W[D,F_tensor], again backward; dW -reduce_scatter(fsdp)-> dW[D_fsdp,F_tensor]
    x[b,T_(context,tensor),D] -all_gather(tensor)-> x[b,T_context,D], and partial sums of it scattered back
    q, k, v[b,T_context,D_tensor] -all_to_all(context)-> q, k, v[b,T,D_(tensor,context)], and back; or around a ring
    for each microbatch:
    W[V_(pipeline,tensor),D_fsdp] -all_gather(fsdp)-> W[V_(pipeline,tensor),D], for the embedding, and for the head
    x[b,T_(context,tensor),D] -permute(pipeline)-> the next stage, dx to the one before
    embeddings, and a few numbers a token for the loss -all_reduce(pipeline x tensor)-> the whole
    once a step, parts of fsdp each, in `reduce_dtype`:
    dW[D] -all_reduce(tensor)-> dW[D], what tensor does not cut; of the last norm -all_reduce(pipeline)-> besides
    dW[D_fsdp,F_tensor] -all_reduce(data x context)-> dW[D_fsdp,F_tensor], each weight

For P parameters on d x f x p x c x t devices put P / pt for P, B / df for B, T / c for T and L / p for L into what
those files count, and in context's attention D / t for D; and over n = dc devices 2 P / fpt (n-1)/n elements a step.

Without stages there is no schedule: microbatches are accumulated one after another, as in fsdp.py and tensor.py.

fsdp gathers weights as often as there are microbatches, and a pipeline wants many: with `gather="step"` it gathers all
before the first, and scatters the sums of their gradients after the last. Where there are stages attention goes from
all to all by default: XLA's permutations wait for all devices of a mesh, and stages work each at its own times.
"""

from dataclasses import replace

from jaxtyping import Array

from strategies import context, data, fsdp, pipeline, tensor
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.weights import Weights
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step, Strategy
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
    """Build the step. An axis that the mesh leaves out has size one."""
    device_mesh, layout = mesh.over(AXES, devices), LAYOUT.along(mesh.split_axes(AXES))
    stages, contexts, tensors = (mesh.sizes.get(axis, 1) for axis in ("pipeline", "context", "tensor"))
    attending = context.resolve_context_attention(train, stages) if contexts > 1 else train
    tensor.require_fit(config, train, tensors, contexts)
    context.require_fit(config, attending, contexts, tensors)
    group = Implementation()
    if layout.shards:
        require_regather(train, stages)
        shards = layout.shards_of(layout.shards, config, mesh.sizes)
        group = fsdp.implementation(shards, train, device_mesh)
    sequence_parallel = train.sequence_parallel and tensors > 1

    def prepare_params(weights: Weights) -> Weights:
        return group.prepare_params(tensor.mark_replicated_varying(weights, config) if sequence_parallel else weights)

    def reduce(loss: Array, grads: Weights) -> tuple[Array, Weights]:
        loss, grads = group.reduce(loss, grads)
        return loss, tensor.all_reduce(grads, config, train.reduce_dtype) if sequence_parallel else grads

    own = replace(_hooks(layout, sequence_parallel), gather=group.hooks.gather, head=group.hooks.head)
    implementation = replace(
        pipeline.implementation(config, train, stages),
        hooks=context.hooks(attending, contexts, own),
        prepare_params=prepare_params,
        reduce=reduce,
    )
    return assemble(config, device_mesh, train, layout, implementation)


def _hooks(layout: Layout, sequence_parallel: bool) -> Hooks:
    """What completes layers, embedding and loss that are cut like this."""
    if "head_features" in layout.dims:
        return tensor.hooks(layout.dims["vocab"], sequence_parallel)
    return tensor.vocab_hooks(layout.dims["vocab"]) if "vocab" in layout.dims else ONE_DEVICE


def require_regather(train: TrainConfig, stages: int) -> None:
    """Refuse to keep what is gathered for a backward pass that is many ticks away."""
    if stages > 1 and train.gather == "layer" and not train.regather:
        kept = "keep gathered weights once for each microbatch in flight"
        raise Infeasible(f"with regather=False pipeline={stages} stages {kept}; use gather=step, which keeps them once")


OPTIONS = tuple(dict.fromkeys((*pipeline.OPTIONS, *tensor.OPTIONS, *context.OPTIONS, *fsdp.OPTIONS)))
THREE_D = Strategy("three_d", AXES, build, OPTIONS, LAYOUT, usual_axes=("data", "pipeline", "tensor"))
