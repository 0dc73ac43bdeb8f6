"""Forward pass through the stages of a pipeline, without a backward pass: for evaluation, and for the load of experts.

Every stage runs its layers in every tick. In tick t stage s has microbatch t - s. In the first and last ticks of a
round some stages have none, and their results are not used. With several chunks per stage, the microbatches go around
once per chunk.

Dims: M microbatches, b sequences of one, T tokens, D embed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from strategies.backends.device_mesh import mark_varying
from strategies.model.gpt import GPT, Collect
from strategies.model.weights import Weights
from strategies.step import Forward, Tokens


def forward(chunks: int, microbatches: int) -> Forward:
    """A forward pass through the stages, with `chunks` chunks each, microbatch by microbatch."""

    def through_stages(
        build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, collect: Collect | None
    ) -> tuple[Array, Any]:
        def run(blocks: Weights, x_bTD: Array) -> tuple[Array, Any]:
            return build({**weights, "blocks": blocks}).run(x_bTD, collect)

        model, tokens_MbS = build(weights), tokens_BS.reshape(microbatches, -1, tokens_BS.shape[-1])
        x_MbTD = lax.map(lambda tokens_bS: model.embed(tokens_bS[:, :-1]), tokens_MbS)
        y_MbTD, found = _run_forward(run, weights["blocks"], x_MbTD, chunks)
        losses_MN = lax.map(lambda each: model.losses(each[0], each[1][:, 1:]), (y_MbTD, tokens_MbS))
        return losses_MN.reshape(-1), _by_slot(found, microbatches) if collect else None

    return through_stages


def _run_forward(
    run: Callable[[Weights, Array], tuple[Array, Any]], blocks: Weights, x_MbTD: Float[Array, "M b T D"], chunks: int
) -> tuple[Float[Array, "M b T D"], list[Any]]:
    """Run all layers on embedded microbatches x, which are equal on all stages, as is the result after the last layer.

    `run` maps (weights of layers, x) to (y, what it finds in these layers). `blocks` are the weights of this stage's
    layers, chunk after chunk. Also returns what was found in each chunk, by tick: microbatch m is in tick stage + m.
    """
    leaves, structure = jax.tree.flatten(blocks)
    found = []
    for chunk in zip(*(jnp.split(leaf, chunks) for leaf in leaves), strict=True):
        x_MbTD, found_t = _around(partial(run, jax.tree.unflatten(structure, chunk)), x_MbTD)
        found.append(found_t)
    return x_MbTD, found


def _by_slot(found: list[Array], microbatches: int) -> Array:
    """What `_run_forward` has found [ticks,L,...] in each chunk -> its sum over microbatches, by slot of all stages."""
    stage = lax.axis_index("pipeline")
    sums = [lax.dynamic_slice_in_dim(found_t, stage, microbatches).sum(0) for found_t in found]
    return lax.all_gather(jnp.concatenate(sums), "pipeline", tiled=True, to="invarying")


def _around(run: Callable[[Array], tuple[Array, Any]], x_MbTD: Array) -> tuple[Array, Any]:
    """One round: through one chunk of each stage."""
    microbatches, stages, stage = len(x_MbTD), lax.axis_size("pipeline"), lax.axis_index("pipeline")
    x_MbTD = mark_varying(x_MbTD, "pipeline")
    onward = [(sender, sender + 1) for sender in range(stages - 1)]

    def tick(arrived_bTD: Array, number: Array) -> tuple[Array, tuple[Array, Any]]:
        entered_bTD = x_MbTD[jnp.minimum(number, microbatches - 1)]
        y_bTD, found = run(jnp.where(stage == 0, entered_bTD, arrived_bTD))
        return lax.ppermute(y_bTD, "pipeline", onward), (y_bTD, found)

    _, (y_tbTD, found_t) = lax.scan(tick, jnp.zeros_like(x_MbTD[0]), jnp.arange(microbatches + stages - 1))
    return lax.psum(jnp.where(stage == stages - 1, y_tbTD[stages - 1 :], 0), "pipeline"), found_t
