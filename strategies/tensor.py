"""Tensor parallel: every layer is split over the devices (Shoeybi et al. 2019, "Megatron-LM", section 3).

The query, key, value and up matmuls are column parallel: split along their outputs (heads, mlp). The output and down
matmuls are row parallel: split along their inputs, so attention and MLP end with one sum each. Embedding and loss are
split over the vocabulary, and no device holds the full logits. Between the matmuls the residual stream, and the norms,
are split over the tokens (sequence parallel; Korthikanti et al. 2022, "Reducing Activation Recomputation", section
4.2.2):

    x[B,T_tensor,D] -all_gather(tensor)-> x[B,T,D], two a layer forward, before attention and before the MLP; and two
        again backward, because the gathered x is not kept
    x[B,T,D] partial sums -reduce_scatter(tensor)-> x[B,T_tensor,D], two a layer forward, after attention and the MLP
    backward, the transposes of these with dx: two reduce-scatters and two all-gathers a layer
    one reduce-scatter for the embedding, one all-gather for the head, and the transpose of each
    for the loss, an all-reduce of three numbers a token: largest logit, sum of exponentials, target's logit
    with norms over all heads (OLMoE) all-reduces of two numbers a token in each layer, forward and again backward
    dW[D] -all_reduce(tensor)-> dW[D], once a step, in `reduce_dtype`: norms, positions and biases, which are replicated
    with fewer KV heads J than devices (core/gradients.py), in groups of the n/J devices that copy a head:
    dW[D,2,K] -all_gather(tensor)-> dW[n/J,D,2,K], once a step, in `reduce_dtype`; each device adds them up. With
        `reduce="layer"` those of the blocks are gathered in the backward loop, a layer at a time

With `sequence_parallel=False` the residual stream is replicated:

    x[B,T,D] partial sums -all_reduce(tensor)-> x[B,T,D], two a layer forward (after attention, after the MLP)
    dx[B,T,D] partial sums -all_reduce(tensor)-> dx[B,T,D], two a layer backward, where x enters the split matmuls
    once more for the embedding forward, and once more for the head backward

With `halves="on"` (model/halves.py) each collective of the layers becomes two, of half the sequences.

For L layers on n devices a device sends (10 L + 4) B T D (n-1)/n elements a step in the compute dtype, or without
sequence parallelism (4 L + 2) 2 B T D (n-1)/n. With latent attention (model/latent_attention.py) Q + C + R features of
a token are gathered before attention: latents of queries, latents of keys and values, and a rotary key. Without latents
of queries they are D + C + R. With `remat="full"` the backward pass repeats the sums after attention.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jax import lax
from jaxtyping import Array

from strategies.backends.device_mesh import mark_varying
from strategies.core.axis import Axis
from strategies.core.expert_rows import batch_parts
from strategies.core.gradients import copied_elements
from strategies.core.plan import Plan
from strategies.core.shards import all_gather, reduce_scatter
from strategies.core.traffic import Traffic, traffic
from strategies.infeasible import WrongSize, divisors, require_divides
from strategies.model.gpt import weight_specs
from strategies.model.hooks import Hooks
from strategies.model.weights import WeightSpec
from strategies.step import Implementation
from strategies.strategy import Strategy, vocabulary_traffic

DIMS = (
    *("heads", "query_features", "plain_key_features", "head_features", "key_features"),
    *("mlp", "expert_mlp", "shared_mlp", "vocab"),
)


def require(plan: Plan) -> None:
    """Check that the tensor axis divides the heads, the hidden features and, with sequence parallelism, the tokens."""
    size, contexts = plan.tensors, plan.size(*plan.placement.tokens)
    dims = {dim for weight in weight_specs(plan.config).values() for dim in weight.dims if dim.endswith("mlp")}
    hidden = {dim: plan.config.dim_sizes[dim] for dim in sorted(dims)}
    require_divides("tensor", size, heads=plan.config.heads, **hidden)
    keys = plan.config.key_heads or plan.config.heads
    if keys % size and size % keys:
        fitting = [each for each in divisors(plan.config.heads) if keys % each == 0 or each % keys == 0]
        problem = f"tensor={size} neither divides key_heads={keys} nor is a multiple of it"
        raise WrongSize(problem, "tensor", fitting)
    tokens, name = plan.config.sequence // contexts, "sequence" if contexts == 1 else "sequence/context"
    if plan.sequence_parallel and tokens % size:
        problem = f"tensor={size} does not divide {name}={tokens}"
        raise WrongSize(problem, "tensor", divisors(tokens), f", or tensor={size} with sequence_parallel=False")


def resolve_halves(plan: Plan) -> Mapping[str, Any]:
    """Resolve `halves="auto"`: "on" where it is possible, on devices that overlap the collectives of both halves."""
    default = plan.backend.halves_blocks if plan.blocks_rows else plan.backend.halves
    return {"halves": plan.choose("halves", _halves_problem(plan), default)}


def _halves_problem(plan: Plan) -> str:
    """Why layers cannot run on two halves of the batch; empty if they can."""
    if plan.placement.tokens:
        return "does not go with a context axis: its halves would send around two rings in any order; use halves=off"
    parts, batch_size = plan.size(*plan.placement.batch) * plan.train.microbatches, plan.train.batch_size
    if batch_size % (2 * parts):
        each = f"batch_size={batch_size} / {parts} = {batch_size / parts:g}"
        needs = f"needs an even number of sequences in each microbatch on a device, and has {each}"
        return f"{needs}; use fewer microbatches, a larger batch or halves=off"
    return ""


def implement(plan: Plan) -> Implementation:
    """Sum partial results of a layer's branches over the devices that split its features."""
    mean = partial(lax.pmean, axis_name="tensor")

    def part(x: Array) -> Array:
        part = x / lax.axis_size("tensor")
        return (
            part if plan.sequence_parallel else mark_varying(part, "tensor")
        )  # sequence parallelism has already marked the weights

    shared = {"replicated_loss": mean, "mean": mean, "per_device_share": part}
    if not plan.sequence_parallel:
        # All tokens are here. They are marked once, before several matmuls, so that their gradients are added and then
        # summed once.
        all_tokens = partial(mark_varying, axes="tensor")
        return Implementation(Hooks(**shared, sum=partial(lax.psum, axis_name="tensor"), all_tokens=all_tokens))

    def own_tokens(x_TD: Array) -> Array:
        count = x_TD.shape[0] // lax.axis_size("tensor")
        return lax.dynamic_slice_in_dim(x_TD, lax.axis_index("tensor") * count, count)

    along_tokens = {"axes": "tensor", "dim": 1}
    scatter, gather = partial(reduce_scatter, **along_tokens), partial(all_gather, **along_tokens)
    return Implementation(Hooks(**shared, sum=scatter, all_tokens=gather, own_tokens=own_tokens))


def has_partial_gradient(plan: Plan, spec: WeightSpec) -> bool:
    """Whether a weight is replicated over `tensor` but each device has only a part of its gradient.

    With sequence parallelism devices have different tokens; without it they have different heads in a head norm.
    """
    return not {*DIMS} & {*spec.dims} and (plan.sequence_parallel or "head_size" in spec.dims)


def layers(plan: Plan) -> Iterator[Traffic]:
    """Sums after attention, MLP and head, forward and backward. A stage's empty slots count as layers."""
    dtype, tensors = plan.train.dtype, plan.axes_of("head_features")
    branches = len(plan.block.branches())
    # With remat="full" all sums are repeated except a layer's last, whose result is the next layer's input.
    again = branches - 1 if plan.train.remat == "full" else 0
    # Backward, what a branch takes of all tokens is reduce-scattered, or all-reduced without sequence parallelism.
    taken = sum(part.taken(plan.config) for part in plan.block.branches()) * plan.tokens
    sums = ((branches + again) * plan.all_layers + branches * plan.recomputed_prefix_layers) * plan.residual
    sums += plan.all_layers * taken
    microbatches, further = plan.train.microbatches, plan.head_uses - 1
    extras = len(plan.block.extras()) * ((1 if plan.staged else microbatches) + further * microbatches)
    yield from traffic(plan, "extras", "all_reduce", tensors, extras, array="number", when="forward")
    times = (3 if again else 2) * plan.all_layers + plan.recomputed_prefix_layers
    means = sum(part.means for part in plan.block.branches()) * times * plan.tokens
    yield from traffic(plan, "norms of all heads", "all_reduce", tensors, means)
    copies = partial(traffic, plan, dtype=plan.train.reduce_dtype, array="gradients", when=plan.when_summed)
    yield from copies("gradients of key copies", "all_gather", tensors, copied_elements(plan), group=plan.key_copies)
    if not plan.sequence_parallel:
        yield from traffic(plan, "layers", "all_reduce", tensors, sums, dtype=dtype)
        yield from traffic(plan, "head", "all_reduce", tensors, plan.head_uses * plan.residual, dtype=dtype)
        yield from _router_gradients(plan, tensors)
        return
    yield from traffic(plan, "layers", "reduce_scatter", tensors, sums, dtype=dtype)
    # Forward, once more backward (remat.py keeps no gather), and as the transpose of the reduce-scatter.
    gathered = (2 * plan.all_layers + plan.recomputed_prefix_layers) * taken // plan.tensors
    gathered += branches * plan.all_layers * plan.own_residual
    yield from traffic(plan, "layers", "all_gather", tensors, gathered, dtype=dtype)
    yield from traffic(plan, "head", "reduce_scatter", tensors, plan.head_uses * plan.residual, dtype=dtype)
    yield from traffic(plan, "head", "all_gather", tensors, plan.head_uses * plan.own_residual, dtype=dtype)


def _router_gradients(plan: Plan, tensors: Sequence[str]) -> Iterator[Traffic]:
    """All-reduces of the gradients of the router and the experts' biases, per layer and microbatch.

    Each half of a microbatch has its own, except biases that are changed by loads, which are summed over both halves.
    """
    term = partial(traffic, plan, "router's gradients", "all_reduce", tuple(tensors), array="gradients")
    for weight in plan.weights.values():
        if {"routes", "experts"} & {*weight.spec.dims} and not {*DIMS} & {*weight.spec.dims}:
            gathered = plan.size(*{*plan.placement.shards} & {*weight.axes})
            times = plan.train.microbatches * (batch_parts(plan.share) if weight.spec.trained else 1)
            elements = times * weight.elements * gathered
            yield from term(elements, dtype=plan.dtype(weight), when="backward")


AXIS = Axis(
    "tensor",
    dims=DIMS,
    options=("sequence_parallel", "halves", "reduce_dtype", "matrices"),
    resolve=resolve_halves,
    require=require,
    partial_gradient=has_partial_gradient,
    implement=implement,
    traffic=(layers, vocabulary_traffic),
)
TENSOR = Strategy("tensor", (AXIS,))
