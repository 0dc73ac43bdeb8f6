"""Sharded update: each device updates its shard of the weights, then all gather them (ZeRO stages 1 and 2).

With `TrainConfig.master="float32"` the state has master weights (Micikevicius et al. 2018, "Mixed Precision Training",
section 3.1), split as in Rajbhandari et al. 2020, "ZeRO", section 5.1:

    master       State.params            State.master               gathered after the update
    "none"       W[D,F] in float32       -                          W[D_data,F] in float32
    "float32"    W[D,F] in `dtype`       W[D_data,F] in float32     W[D_data,F] in `dtype`

The forward pass casts float32 weights to `dtype` anyway, so with master weights it computes with the same numbers. The
two gradients of a tied table are summed in `dtype`. Vectors (norm weights and biases) are used in float32
(model/weights.py), and therefore held and gathered in float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array

from strategies.backends.backend import backend_of
from strategies.config import Dtype, GPTConfig, Infeasible, TrainConfig
from strategies.model.gpt import weight_dims
from strategies.model.weights import Weights, used_dtype
from strategies.sharding.layout import Layout
from strategies.sharding.weight_shards import Shards
from strategies.step import State


def require_master(layout: Layout, train: TrainConfig) -> None:
    """Refuse `master` where it changes nothing.

    Raises:
        Infeasible: weights are sharded already, every device updates all weights, or the compute dtype is float32.
    """
    if train.master == "none":
        return
    asked = f"master={train.master}"
    if layout.shards:
        problem = f"{asked} changes nothing where weights are sharded over {' x '.join(layout.shards)}"
        raise Infeasible(f"{problem}: the shards are float32 already, and are gathered in dtype; leave it out")
    if not layout.updates:
        raise Infeasible(f"{asked} needs devices that update shards of weights; leave it out, or use zero1 or zero2")
    if train.dtype == "float32":
        raise Infeasible(f"{asked} changes nothing with dtype=float32; leave it out, or use dtype=bfloat16 or float16")


def held_dtype(dims: Sequence[str], train: TrainConfig) -> Dtype:
    """The dtype of a weight in `State.params`."""
    return "float32" if train.master == "none" else used_dtype(dims, train.dtype)


def held(weights: Weights, config: GPTConfig, train: TrainConfig) -> tuple[Weights, Weights | None]:
    """Float32 weights -> the same as `State.params` and as `State.master` hold them."""
    if train.master == "none":
        return weights, None
    return jax.tree.map(lambda w, dims: w.astype(held_dtype(dims, train)), weights, weight_dims(config)), weights


class ShardedUpdate(NamedTuple):
    """The functions of a sharded update (`Layout.updates`).

    Attributes:
        scatter: gradients of each device -> this device's shard of their sum.
        shard_params: state -> the float32 shards of the weights that this device updates.
        unshard_params: such shards, as `held` casts them, and the whole weights that they replace -> `State.params`.
    """

    scatter: Callable[[Weights], Weights]
    shard_params: Callable[[State], Weights]
    unshard_params: Callable[[Weights, Weights], Weights]

    @classmethod
    def of(cls, layout: Layout, config: GPTConfig, mesh: Mesh, train: TrainConfig) -> "ShardedUpdate | None":
        """The sharded update of a layout; None if every device updates all weights that it holds."""
        if not layout.updates:
            return None
        shards = layout.shards_of(layout.updates, config, mesh.shape)

        def shard_params(state: State) -> Weights:
            return state.master or shards.map_weights(shards.local_part, state.params)

        return cls(
            partial(shards.map_weights, partial(shards.scatter, dtype=train.reduce_dtype)),
            shard_params,
            partial(_unshard, shards, backend_of(mesh.devices.flat[0]).gathers_outermost_only),
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
        return shards.map_weights(lambda part, dims: gather(part[i], dims[1:]), blocks)

    def put(layer: Weights, i: Array | int, whole: Weights) -> Weights:
        return jax.tree.map(lambda new, all_LX: lax.dynamic_update_index_in_dim(all_LX, new, i, 0), layer, whole)

    def gather_next(i: Array, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
        layer, whole = carry
        return gathered(i + 1), put(layer, i, whole)

    last = shards.config.layers - 1
    layer, whole = lax.fori_loop(0, last, gather_next, (gathered(0), {"blocks": replaced["blocks"]}))
    ends = shards.map_weights(gather, {part: parts[part] for part in parts if part not in blocks})
    return ends | put(layer, last, whole)
