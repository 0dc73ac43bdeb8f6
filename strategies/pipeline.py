"""Pipeline parallel in the order of GPipe (Huang et al. 2019, section 2.2): all forward, then all backward.

Each device is a stage and holds the layers of one. The batch goes through in microbatches: at tick t stage s works on
microbatch t - s, and where there is none it computes nothing. Embedding and head are cut over the vocabulary and
shared among all stages, so that no stage holds or computes more than another (Yeung et al. 2024, "Balancing Pipeline
Parallelism with Vocabulary Parallelism").

    x[b,T,D] of a microbatch -permute(pipeline)-> the next stage, at each of M + S - 1 ticks; backward dx the other way
    x[B,T,D] embedded, partial -all_reduce(pipeline)-> every stage; backward the same for dx, from the first stage
    x[B,T,D] of the last stage -all_reduce(pipeline)-> every stage, for the loss; backward the same for dx
    a few numbers a token for the loss, as in tensor.py

For S stages, M microbatches of b = B / M sequences, a device sends 2 (M + S - 1) b T D elements to its neighbour and
4 times 2 B T D (S-1)/S in all-reduces a step, in the compute dtype. Positions and the last norm are held, and their
gradients computed, by every stage alike. A stage is idle for (S-1)/(M+S-1) of the ticks.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from strategies import tensor
from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.gpt import GPT
from strategies.mesh import Devices, MeshSpec
from strategies.step import Spread, Step, Strategy, Tokens, require_divides

AXES = ("pipeline",)
SPLIT = {"layers": "pipeline", "vocab": "pipeline"}
Stage = Callable[[list[Array], Array], Array]


def piped(model: GPT, tokens_BS: Tokens, stages: int, microbatches: int) -> Float[Array, " N"]:
    """The loss of each token, in the place of `step.forward`."""
    graph, weights = nnx.split(model.blocks)

    def run(weights: list[Array], x_bTD: Array) -> Array:
        return model.run(x_bTD, nnx.merge(graph, jax.tree.unflatten(structure, weights)))

    leaves, structure = jax.tree.flatten(weights)
    x_BTD = model.embed(tokens_BS[:, :-1])
    x_MbTD = lax.pcast(x_BTD.reshape(microbatches, -1, *x_BTD.shape[1:]), "pipeline", to="varying")
    y_MbTD: Any = run_stages(run, stages, leaves, x_MbTD)
    last = lax.axis_index("pipeline") == stages - 1
    y_BTD = lax.psum(jnp.where(last, y_MbTD, 0), "pipeline").reshape(x_BTD.shape)
    return model.losses(y_BTD, tokens_BS[:, 1:])


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_stages(
    run: Stage, stages: int, weights: list[Array], x_MbTD: Float[Array, "M b T D"]
) -> Float[Array, "M b T D"]:
    """All microbatches through all stages: in with the first stage's `x_MbTD`, out with the last stage's result.

    `run(weights, x_bTD)` is this device's stage. It may use collectives over other axes: the devices of one stage
    take the same branch. Differentiated by hand: autodiff of the loop would keep a copy of the weights for each tick,
    and add a gradient of zeros for each idle one.
    """
    return _forward(run, stages, weights, x_MbTD)[0]


def _forward(run: Stage, stages: int, weights: list[Array], x_MbTD: Array) -> tuple[Array, Any]:
    """Forward ticks; what the backward pass needs of each, but for the weights, is stacked over ticks."""
    stage, microbatches, nothing_bTD = lax.axis_index("pipeline"), x_MbTD.shape[0], jnp.zeros_like(x_MbTD[0])

    def work(x_bTD: Array) -> tuple[Array, Any]:
        pull: Any
        y_bTD, pull = jax.vjp(run, weights, x_bTD)  # `pull` holds what it keeps: of its arguments, and besides
        return y_bTD, (pull.args_res[1], pull.opaque_residuals)

    def idle(x_bTD: Array) -> tuple[Array, Any]:
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(work, x_bTD))

    def tick(arrived_bTD: Array, now: tuple[Array, Array]) -> tuple[Array, Any]:
        t, entering_bTD = now
        working = (t >= stage) & (t < stage + microbatches)
        y_bTD, kept = lax.cond(working, work, idle, jnp.where(stage == 0, entering_bTD, arrived_bTD))
        return lax.ppermute(y_bTD, "pipeline", [(s, s + 1) for s in range(stages - 1)]), (y_bTD, kept)

    idling = jnp.broadcast_to(nothing_bTD, (stages - 1, *nothing_bTD.shape))
    ticks = jnp.arange(microbatches + stages - 1)
    _, (y, kept) = lax.scan(tick, nothing_bTD, (ticks, jnp.concatenate([x_MbTD, idling])))
    return y[stages - 1 :], (weights, kept)


def _backward(run: Stage, stages: int, saved: Any, dy_MbTD: Array) -> tuple[list[Array], Array]:
    """The same ticks from the last to the first. A working stage adds to the gradients of its weights in place."""
    weights, kept = saved
    stage, microbatches, nothing_bTD = lax.axis_index("pipeline"), dy_MbTD.shape[0], jnp.zeros_like(dy_MbTD[0])

    def work(dweights: list[Array], dy_bTD: Array, kept: Any) -> tuple[list[Array], Array]:
        pull = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], weights, nothing_bTD)
        pull = dataclasses.replace(pull, args_res=[tuple(weights), kept[0]], opaque_residuals=kept[1])
        more, dx_bTD = pull(dy_bTD)
        return jax.tree.map(jnp.add, dweights, more), dx_bTD

    def idle(dweights: list[Array], dy_bTD: Array, kept: Any) -> tuple[list[Array], Array]:
        return dweights, nothing_bTD

    def tick(carry: tuple[list[Array], Array], now: Any) -> tuple[Any, Array]:
        (dweights, arrived_bTD), (t, entering_bTD, kept) = carry, now
        working = (t >= stage) & (t < stage + microbatches)
        dy_bTD = jnp.where(stage == stages - 1, entering_bTD, arrived_bTD)
        dweights, dx_bTD = lax.cond(working, work, idle, dweights, dy_bTD, kept)
        sent_bTD = lax.ppermute(dx_bTD, "pipeline", [(s + 1, s) for s in range(stages - 1)])
        return (dweights, sent_bTD), dx_bTD

    idling = jnp.broadcast_to(nothing_bTD, (stages - 1, *nothing_bTD.shape))
    ticks, start = jnp.arange(microbatches + stages - 1), (jax.tree.map(jnp.zeros_like, weights), nothing_bTD)
    entering = jnp.concatenate([idling, dy_MbTD])
    (dweights, _), dx = lax.scan(tick, start, (ticks, entering, kept), reverse=True)
    return dweights, jnp.where(stage == 0, dx[:microbatches], 0)


run_stages.defvjp(_forward, _backward)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`."""
    device_mesh = mesh.over(AXES, devices)
    require_divides("pipeline", mesh.size, layers=config.layers)
    spread = Spread(
        spec=lambda dims: P(*map(SPLIT.get, dims)),
        vocab_shards=mesh.size,
        hooks=tensor.vocab_hooks(AXES),
        forward=partial(piped, stages=mesh.size, microbatches=train.microbatches),
    )
    return assemble(config, device_mesh, train, spread)


PIPELINE = Strategy("pipeline", AXES, build)
