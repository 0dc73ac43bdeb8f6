"""Sharded update: each device updates its shard of the weights, then all gather them (ZeRO stages 1 and 2)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jaxtyping import Array

from strategies.core.plan import Plan
from strategies.core.shards import Shards
from strategies.model.weights import Weights
from strategies.step import State


class ShardedUpdate(NamedTuple):
    """The functions of a sharded update (`Placement.updates`).

    Attributes:
        scatter: gradients of each device -> this device's shard of their sum.
        shard_params: state -> the float32 shards of the weights that this device updates.
        unshard_params: such shards, as `held` casts them, and the whole weights that they replace -> `State.params`.
    """

    scatter: Callable[[Weights], Weights]
    shard_params: Callable[[State], Weights]
    unshard_params: Callable[[Weights, Weights], Weights]

    @classmethod
    def of(cls, plan: Plan) -> "ShardedUpdate | None":
        """The sharded update of a step; None if every device updates all weights that it holds."""
        if not plan.placement.updates:
            return None
        shards = plan.shards_of(plan.placement.updates)

        def shard_params(state: State) -> Weights:
            return state.master or shards.map_weights(shards.local_part, state.params)

        return cls(
            partial(shards.map_weights, partial(shards.scatter, dtype=plan.train.reduce_dtype)),
            shard_params,
            partial(_unshard, shards, plan.backend.gathers_outermost_only),
        )


def _unshard(shards: Shards, by_layer: bool, parts: Weights, replaced: Weights) -> Weights:
    """Gather weights; `by_layer` those of one layer after another, in place of the old ones.

    Where the transport joins parts along the outermost dim only, XLA gathers a matrix of all layers into a temporary in
    another layout, and transposes that. A layer is gathered while the one before it is put in place, so that the links
    are always busy (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    gather = partial(shards.gather, to="invarying")
    if not by_layer:
        return shards.map_weights(gather, parts)
    blocks = {"blocks": parts["blocks"]}

    def gathered(i: Array | int) -> Weights:
        return shards.map_weights(lambda part, spec: gather(part[i], replace(spec, dims=spec.dims[1:])), blocks)

    def put(layer: Weights, i: Array | int, whole: Weights) -> Weights:
        return jax.tree.map(lambda new, all_LX: lax.dynamic_update_index_in_dim(all_LX, new, i, 0), layer, whole)

    def gather_next(i: Array, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
        layer, whole = carry
        return gathered(i + 1), put(layer, i, whole)

    last = (
        len(jax.tree.leaves(parts["blocks"])[0]) - 1
    )  # of this device: stages of a pipeline have fewer than the model
    layer, whole = lax.fori_loop(0, last, gather_next, (gathered(0), {"blocks": replaced["blocks"]}))
    ends = shards.map_weights(gather, {part: parts[part] for part in parts if part not in blocks})
    return ends | put(layer, last, whole)
