"""Reduce each layer's gradients over devices inside the backward loop over layers (`TrainConfig.reduce="layer"`).

The sum of a layer's gradients is independent of other layers, so a compiler can overlap it with the backward pass of
the layers before it (Li et al. 2020, "PyTorch Distributed", section 3.2.3). Autodiff leaves gradients on the device
that computed them. So each stored weight of the blocks is paired with a target, the array whose gradient is the sum:
the weight itself, or with a sharded update (ZeRO stages 1 and 2) this device's shard of it. A layer runs with the
weight, and its summed gradients become the targets' gradients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import lax
from jaxtyping import Array

from strategies.core.gradients import all_reduce_listed, cast, mark_shares, sum_listed_copies
from strategies.core.plan import Plan
from strategies.core.shards import own_parts, scatter
from strategies.infeasible import Infeasible
from strategies.model.gpt import GPT, map_weights
from strategies.model.layers import after
from strategies.model.weights import Weights, WeightSpec
from strategies.step import Differentiate, Divisor, Implementation, LossTerms, Tokens


def resolve_reduce(plan: Plan) -> Mapping[str, Any]:
    """Resolve `reduce="auto"`: "layer" if devices overlap such sums and it sends no more bytes, else "step"."""
    return {"reduce": plan.choose("reduce", _reduce_problem(plan), plan.backend.sums_by_layer, "layer", "step")}


def _reduce_problem(plan: Plan) -> str:
    """Why gradients cannot be summed layer by layer; empty if they can."""
    placement, train = plan.placement, plan.train
    if plan.staged:
        return "has no backward loop in a pipeline, whose stages accumulate gradients of microbatches; use reduce=step"
    if placement.shards and train.gather == "step":
        return "does not go with gather=step, which sums gradients once a step; use gather=layer or reduce=step"
    if own := [axis.name for axis in plan.active if axis.replica_sums and "reduce" not in axis.options]:
        return f"does not go with the sums of the axis {own[0]}, which it makes once a step; use reduce=step"
    if train.compression != "none":
        return f"does not go with compression={train.compression}, which sums all gradients at once; use reduce=step"
    once = placement.updates and not placement.reduce_scatter_per_microbatch
    if train.microbatches > 1 and (placement.replicas or once):
        return f"would send gradients for each of microbatches={train.microbatches}; use reduce=step or microbatches=1"
    return ""


@partial(jax.tree_util.register_dataclass, data_fields=["weight", "target"], meta_fields=[])
@dataclass(frozen=True)
class Paired:
    """A stored weight, and the array whose gradient is the summed gradient of the weight."""

    weight: Array
    target: Array


def sum_by_layer(implementation: Implementation, plan: Plan) -> Implementation:
    """The same implementation, but the backward loop over layers sums the gradients of the blocks over devices."""
    if implementation.reduce and not implementation.sum_layer:
        raise Infeasible("reduce=layer needs `sum_layer` in addition to `reduce`; set it, or use reduce=step")
    layer = partial(_weights_of_layer, partial(_summed, plan, implementation.sum_layer))
    hooks = replace(implementation.hooks, layer=layer, overlap_grad_reduction=plan.overlap_grad_reduction)
    return replace(implementation, hooks=hooks, differentiate=partial(_of_targets, plan, implementation.differentiate))


def _of_targets(
    plan: Plan,
    differentiate: Differentiate,
    build: Callable[[Weights], GPT],
    weights: Weights,
    tokens_BS: Tokens,
    divisor: Divisor,
) -> tuple[LossTerms, Weights]:
    """A `Differentiate` that returns the blocks' gradients summed over devices, as gradients of the targets."""
    blocks = {"blocks": weights["blocks"]}
    run_with = map_weights(
        lambda weight, spec: mark_shares(lax.stop_gradient(weight), plan.placed(spec.dims)), plan.config, blocks
    )["blocks"]
    # Sums of gradients are float32, whatever dtype `master` gives the weights.
    targets = cast(own_parts(blocks, plan), "float32") if plan.placement.updates else blocks

    def paired(weights: Weights) -> GPT:
        return build({**weights, "blocks": jax.tree.map(Paired, run_with, weights["blocks"])})

    loss, grads = differentiate(paired, {**weights, **targets}, tokens_BS, divisor)
    return loss, _after_blocks(grads, plan) if plan.virtual else grads


def _weights_of_layer(summed: Callable[[list[Array], list[WeightSpec]], list[Array]], layer: nnx.State) -> nnx.State:
    """`Hooks.layer`: paired weights of a layer -> the weights. Its transpose sums their gradients.

    Unpaired weights, as in evaluation, stay as they are.
    """
    params, structure = jax.tree.flatten(layer, is_leaf=lambda leaf: isinstance(leaf, nnx.Param))
    pairs = [param.get_value() for param in params]
    if not isinstance(pairs[0], Paired):
        return layer

    @jax.custom_vjp
    def weights_of(weights: list[Array], targets: list[Array]) -> list[Array]:
        return weights

    specs = [param.spec for param in params]
    weights_of.defvjp(lambda weights, _: (weights, None), lambda _, grads: (None, summed(grads, specs)))
    weights = weights_of([pair.weight for pair in pairs], [pair.target for pair in pairs])
    return jax.tree.unflatten(structure, [param.replace(w) for param, w in zip(params, weights, strict=True)])


def _summed(
    plan: Plan, sum_layer: Callable[[list[Array]], list[Array]] | None, grads: list[Array], specs: list[WeightSpec]
) -> list[Array]:
    """One layer's gradients on this device -> the gradients of the targets."""
    grads = sum_listed_copies(grads, specs, plan)
    if plan.placement.updates:
        grads = [
            scatter(grad, plan.placed(spec.dims).update_shard, spec, plan.train.reduce_dtype)
            for grad, spec in zip(grads, specs, strict=True)
        ]
    return sum_layer(grads) if sum_layer else all_reduce_listed(grads, specs, plan)


def _after_blocks(grads: Weights, plan: Plan) -> Weights:
    """Make the gradients of the head, and of the MTP block, depend on those of the blocks, without a change.

    Otherwise XLA's CPU backend may sum them concurrently with the backward loop, and virtual devices may deadlock
    (benchmarks/program/deadlock.py). The embedding's gradients depend on the loop anyway.
    """
    # A block's norm varies over the same mesh axes as the last norm.
    norms = map_weights(lambda g, spec: g if spec.dims == ("layers", "embed") else None, plan.config, grads)
    last = (jax.tree.leaves(norms["blocks"]) or jax.tree.leaves(grads["blocks"]))[-1]
    return grads | {part: after(last, grads[part]) for part in ("head", "mtp") if part in grads}
