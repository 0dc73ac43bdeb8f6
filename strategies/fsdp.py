"""Fully sharded data parallel: ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3).

Weights, gradients, optimizer state and the batch are sharded over the devices (core/shards.py). With `gather="layer"` a
layer's full weights exist only while the layer runs, or with `prefetch` already during the previous layer:

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], in the compute dtype: each layer forward, and again backward
    dW[D,F] -reduce_scatter(fsdp)-> dW[D_fsdp,F], in `reduce_dtype`

Vectors (norm weights and biases) are used, and so gathered, in float32.

For P parameters on n devices, E of them in the embedding and the head, a device sends (3 P - E) (n-1)/n elements per
microbatch. Some weights are not gathered again for the backward pass: the embedding, and vectors, whose backward pass
does not need them, and the head, whose backward pass follows at once. A tied head uses the token table a second time,
so the table is gathered, and its gradient scattered, twice. With `regather=False` all gathered weights are kept for the
backward pass, and a device sends 2 P (n-1)/n elements per microbatch.

With `prefetch="on"` a layer's weights are gathered while the previous layer runs. Backward, the gradients of the
following layer are scattered at the same time (model/layers.py). The last layer's weights are not gathered again.

With `gather="step"` all weights are gathered before the first microbatch, and kept until the last:

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], each weight, in the compute dtype, once a step
    dW[D,F] -reduce_scatter(fsdp)-> dW[D_fsdp,F], each weight, in `reduce_dtype`, once a step

A device sends 2 P (n-1)/n elements a step, whatever the number of microbatches. It holds all weights in the compute
dtype, and all gradients, accumulated in float32.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.core.axis import Axis
from strategies.core.placement import Weight
from strategies.core.plan import Plan
from strategies.core.shards import gather, scatter
from strategies.core.traffic import Traffic, is_tied, traffic
from strategies.infeasible import Infeasible
from strategies.model.hooks import Hooks, head_first
from strategies.model.remat import GATHERED
from strategies.model.weights import WeightSpec
from strategies.step import Implementation
from strategies.strategy import Strategy


def resolve(plan: Plan) -> Mapping[str, Any]:
    """Resolve `prefetch="auto"`."""
    return {"prefetch": plan.choose("prefetch", _prefetch_problem(plan), plan.backend.prefetches)}


def _prefetch_problem(plan: Plan) -> str:
    """Why weights cannot be gathered one layer ahead; empty if they can."""
    if plan.staged:
        return "has no loop over all layers in a pipeline; use prefetch=off"
    if plan.train.gather == "step":
        return "does not go with gather=step, which gathers all weights at once; use gather=layer or prefetch=off"
    if not plan.train.regather:
        return "gathers weights again for the backward pass; use regather=True or prefetch=off"
    if plan.config.blocks == 1:
        lead = f" and dense_layers={plan.config.dense_layers}" if plan.config.lead else ""
        return f"needs a second layer to gather, and layers={plan.config.layers}{lead}; use prefetch=off"
    return ""


def require(plan: Plan) -> None:
    """Refuse `regather=False` with pipeline stages."""
    if plan.staged and plan.train.gather == "layer" and not plan.train.regather:
        problem = f"with regather=False pipeline={plan.stages} stages keep gathered weights"
        raise Infeasible(f"{problem} once for each microbatch in flight; use regather=True")


def implement(plan: Plan) -> Implementation:
    """Gather a layer's weights when it runs. With `gather="step"` the step gathers all weights (gradients.py)."""
    if plan.train.gather == "step":
        return Implementation()
    hooks = Hooks(gather=gather_hook(plan))
    return Implementation(replace(hooks, head=head_first) if plan.virtual else hooks)


def gather_hook(plan: Plan) -> Callable[[Array, WeightSpec, str], Array]:
    """`Hooks.gather`: all-gathers a weight when a layer runs. Its transpose reduce-scatters the gradient.

    The backward pass gathers the weight again, because no policy of remat.py keeps the result of an all-gather.
    """

    def gather_whole(part: Array, spec: WeightSpec, dtype: str) -> Array:
        weight = _gather_scatter(plan, spec, dtype)(part)
        return weight if plan.train.regather else checkpoint_name(weight, GATHERED)

    return gather_whole


def _gather_scatter(plan: Plan, spec: WeightSpec, dtype: str) -> Callable[[Array], Array]:
    """A function that gathers a weight in `dtype`, and whose transpose sums the gradients in `reduce_dtype`.

    If both dtypes are equal it is the plain gather, because autodiff's transpose then sums in the right dtype.
    """
    split, reduce_dtype = plan.placed(spec.dims).stored_shard, spec.summed_dtype(plan.train.reduce_dtype)

    def gathered(part: Array) -> Array:
        return gather(part.astype(dtype), split)

    if dtype == reduce_dtype:
        return gathered
    function = jax.custom_vjp(gathered)
    function.defvjp(lambda part: (gathered(part), None), lambda _, grad: (scatter(grad, split, spec, reduce_dtype),))
    return function


def gathers(plan: Plan) -> Iterator[Traffic]:
    """Gathers of sharded weights, and reduce-scatters of their gradients; of a tied table for each of its two uses."""
    axes, by_layer = plan.placement.shards, plan.train.gather == "layer"
    for weight in (weight for weight in plan.weights.values() if weight.stored_shard):
        whole = weight.elements * plan.shards
        once, again = weight.elements, 0
        if by_layer and weight.spec.is_layered:
            once, again = layer_elements(plan, weight)
        elif by_layer:
            once = embedding_or_head_gathers(plan, weight) * weight.elements
        scattered = plan.train.microbatches * uses(plan, weight) if by_layer else 1
        innermost = weight.spec.is_matrix and bool({*axes} & {*weight.stored[-1]})
        term = partial(traffic, plan, axes=axes, innermost=innermost)
        dtype, reduce_dtype = plan.dtype(weight), plan.summed_dtype(weight)
        forward, backward = ("forward", "backward") if by_layer else ("before forward", "after backward")
        weights = partial(term, kind="all_gather", dtype=dtype, array="weights")
        yield from weights("weights", elements=once, when=forward)
        yield from weights("weights again", elements=again, when=backward)
        scatters = partial(term, kind="reduce_scatter", dtype=reduce_dtype, array="gradients")
        yield from scatters("gradients", elements=scattered * whole, when=backward)


def uses(plan: Plan, weight: Weight) -> int:
    """Uses of a weight in a microbatch, each of which scatters a gradient.

    A tied table has two. In a pipeline multi-token prediction embeds next tokens with the head.
    """
    again = plan.staged and plan.config.mtp is not None and weight.spec.name == "embedding.token_VD"
    return 1 + is_tied(plan, weight) + again


def layer_elements(plan: Plan, weight: Weight) -> tuple[int, int]:
    """Elements of a layer weight that are gathered in a step, over all microbatches: forward, and backward.

    A weight is gathered again if the backward pass needs it (`Backward`); with `remat="none"` it needs no vectors. With
    prefetch the last layer's weights are kept for the backward pass. A pipeline runs leading dense layers forward twice
    (`Plan.recomputed_prefix_layers`).
    """
    train = plan.train
    needs = {"needed": True, "recomputation": train.remat == "full", "unused": False}
    needed = needs[weight.spec.backward] and (train.remat != "none" or weight.spec.is_matrix)
    forward = train.microbatches * weight.elements
    kept = forward // plan.layers if train.prefetch == "on" and weight.spec.is_stacked else 0
    twice = plan.staged and weight.spec.dims[0] == "dense_layers"
    return forward * (2 if twice else 1), forward - kept if train.regather and needed else 0


def embedding_or_head_gathers(plan: Plan, weight: Weight) -> int:
    """Number of gathers of an embedding or head weight in a step.

    Without stages it is one: weights are constant in the loop over microbatches, so the compiler hoists and merges
    equal gathers. A pipeline gathers in each tick what the tick needs: the embedding for a microbatch that enters, the
    head for one that leaves, and a tied table once for both. With leading dense layers it embeds again for the backward
    pass, and with multi-token prediction embeds for one that leaves; it then gathers each time (executor.py).
    """
    if not plan.staged:
        return 1
    tied, shared = is_tied(plan, weight), plan.ticks.shared
    mtp = plan.config.mtp is not None
    if plan.recomputed_prefix_layers or mtp:
        embeds = 1 + (plan.recomputed_prefix_layers > 0) + (tied or mtp)
        return plan.train.microbatches * (1 if weight.spec.name.startswith("head.") else embeds)
    ticks = int(((shared.enters >= 0) | (shared.leaves >= 0)).sum())
    return 1 + ticks if tied else plan.train.microbatches


AXIS = Axis(
    "fsdp",
    batch=True,
    shards=True,
    options=("gather", "regather", "prefetch", "reduce_dtype", "matrices"),
    resolve=resolve,
    require=require,
    implement=implement,
    traffic=(gathers,),
)
FSDP = Strategy("fsdp", (AXIS,))
