"""Updates in parts: each device updates its part of the weights, then all gather them (ZeRO stages 1 and 2)."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax import lax
from jaxtyping import Array

from strategies.core.plan import Plan
from strategies.core.shards import gather, own_part
from strategies.model.gpt import map_weights
from strategies.model.weights import Weights, WeightSpec


def own_parts(weights: Weights, plan: Plan) -> Weights:
    """This device's parts of the weights that it updates."""
    return map_weights(lambda weight, spec: own_part(weight, plan.placed(spec.dims).shared), plan.config, weights)


def gather_updated(parts: Weights, replaced: Weights, plan: Plan) -> Weights:
    """Gather updated weights, in place of the old ones that they replace.

    Where the transport joins parts along the outermost dim only, XLA gathers a matrix of all layers into a temporary in
    another layout, and transposes that. There the layers are gathered one after another: a layer is gathered while the
    one before it is put in place, so that the links are always busy
    (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    if not plan.backend.gathers_outermost_only:
        return map_weights(partial(_gathered, plan), plan.config, parts)
    ends, blocks = {name: part for name, part in parts.items() if name != "blocks"}, {"blocks": parts["blocks"]}

    def layer(i: Array | int) -> Weights:
        def gathered(part: Array, spec: WeightSpec) -> Array:
            return _gathered(plan, part[i], replace(spec, dims=spec.dims[1:]))

        return map_weights(gathered, plan.config, blocks)

    def put(new: Weights, i: Array | int, whole: Weights) -> Weights:
        return jax.tree.map(lambda one, all_LX: lax.dynamic_update_index_in_dim(all_LX, one, i, 0), new, whole)

    def gather_next(i: Array, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
        new, whole = carry
        return layer(i + 1), put(new, i, whole)

    last = len(jax.tree.leaves(blocks)[0]) - 1  # of this device: stages of a pipeline have fewer than the model
    new, whole = lax.fori_loop(0, last, gather_next, (layer(0), {"blocks": replaced["blocks"]}))
    return map_weights(partial(_gathered, plan), plan.config, ends) | put(new, last, whole)


def _gathered(plan: Plan, part: Any, spec: WeightSpec) -> Array:
    return gather(part, plan.placed(spec.dims).shared, to="invarying")
