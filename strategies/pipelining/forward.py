"""Forward pass through the stages of a pipeline, without a backward pass: for evaluation, and for the load of experts.

Every stage runs its layers in every tick. In tick t the stage at place s of a round has microbatch t - s. In the first
and last ticks of a round some stages have none, and their results are not used. With several chunks per stage, the
microbatches go around once per chunk, every second time backwards if the parts of the model are assigned in a V.

Dims: M microbatches, b sequences of one, T tokens, D embed.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from strategies.backends.device_mesh import mark_varying
from strategies.model.gpt import GPT, Collect
from strategies.model.weights import Weights
from strategies.pipelining.schedules import Schedule
from strategies.step import Forward, Tokens


def forward(schedule: Schedule) -> Forward:
    """A forward pass through the stages, microbatch by microbatch."""
    microbatches = schedule.microbatches

    def through_stages(
        build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, collect: Collect | None
    ) -> tuple[Array, Any]:
        def run(blocks: Weights, x_bTD: Array) -> tuple[Array, Any]:
            return build({**weights, "blocks": blocks}).run(x_bTD, collect)

        model, tokens_MbS = build(weights), tokens_BS.reshape(microbatches, -1, tokens_BS.shape[-1])
        x_MbTD = lax.map(lambda tokens_bS: model.embed(tokens_bS[:, :-1]), tokens_MbS)
        y_MbTD, found = _run_forward(run, weights["blocks"], x_MbTD, schedule)
        losses_MN = lax.map(lambda each: model.losses(each[0], each[1][:, 1:]), (y_MbTD, tokens_MbS))
        return losses_MN.reshape(-1), _by_slot(found, schedule) if collect else None

    return through_stages


def _run_forward(
    run: Callable[[Weights, Array], tuple[Array, Any]],
    blocks: Weights,
    x_MbTD: Float[Array, "M b T D"],
    schedule: Schedule,
) -> tuple[Float[Array, "M b T D"], list[Any]]:
    """Run all layers on embedded microbatches x, which are equal on all stages, as is the result after the last layer.

    `run` maps (weights of layers, x) to (y, what it finds in these layers). `blocks` are the weights of this stage's
    layers, chunk after chunk. Also returns what was found in each chunk, by tick: microbatch m is in tick m plus the
    stage's place in the round.
    """
    leaves, structure = jax.tree.flatten(blocks)
    found = []
    for chunk, part in enumerate(zip(*(jnp.split(leaf, schedule.chunks) for leaf in leaves), strict=True)):
        x_MbTD, found_t = _around(partial(run, jax.tree.unflatten(structure, part)), x_MbTD, _route(schedule, chunk))
        found.append(found_t)
    return x_MbTD, found


def _route(schedule: Schedule, chunk: int) -> list[int]:
    """The stages in the order in which a microbatch passes through their parts of a chunk."""
    return [schedule.stage_of(chunk * schedule.stages + place) for place in range(schedule.stages)]


def _place(route: list[int]) -> Array:
    """This stage's place in a route."""
    return jnp.asarray(np.argsort(route))[lax.axis_index("pipeline")]


def _by_slot(found: list[Array], schedule: Schedule) -> Array:
    """What `_run_forward` has found [ticks,L,...] in each chunk -> its sum over microbatches, by slot of all stages."""
    places = [_place(_route(schedule, chunk)) for chunk in range(schedule.chunks)]
    sums = [
        lax.dynamic_slice_in_dim(found_t, place, schedule.microbatches).sum(0)
        for found_t, place in zip(found, places, strict=True)
    ]
    return lax.all_gather(jnp.concatenate(sums), "pipeline", tiled=True, to="invarying")


def _around(run: Callable[[Array], tuple[Array, Any]], x_MbTD: Array, route: list[int]) -> tuple[Array, Any]:
    """One round: through one chunk of each stage."""
    microbatches, place = len(x_MbTD), _place(route)
    x_MbTD = mark_varying(x_MbTD, "pipeline")
    onward = list(pairwise(route))

    def tick(arrived_bTD: Array, number: Array) -> tuple[Array, tuple[Array, Any]]:
        entered_bTD = x_MbTD[jnp.minimum(number, microbatches - 1)]
        y_bTD, found = run(jnp.where(place == 0, entered_bTD, arrived_bTD))
        return lax.ppermute(y_bTD, "pipeline", onward), (y_bTD, found)

    _, (y_tbTD, found_t) = lax.scan(tick, jnp.zeros_like(x_MbTD[0]), jnp.arange(microbatches + len(route) - 1))
    left_MbTD = jnp.where(place == len(route) - 1, y_tbTD[len(route) - 1 :], 0)
    return lax.psum(left_MbTD, "pipeline"), found_t
