"""Pipeline parallel in the order of GPipe (Huang et al. 2019, section 2.2): all forward, then all backward.

Each device is a stage and holds the layers of one. The batch goes through in microbatches: at tick t stage s works on
microbatch t - s, and where there is none it computes nothing. Embedding and head are cut over the vocabulary and
shared among all stages, so that no stage holds or computes more than another (Yeung et al. 2024, "Balancing Pipeline
Parallelism with Vocabulary Parallelism").

    x[b,T,D] of a microbatch -permute(pipeline)-> the next stage, at each of M + S - 1 ticks; backward dx the other way
    x[B,T,D] embedded, partial -all_reduce(pipeline)-> every stage; backward the same for dx, from the first stage
    x[B,T,D] of the last stage -all_reduce(pipeline)-> every stage, for the loss; backward the same for dx
    a few numbers a token for the loss, as in tensor.py; dW[D] of the last norm -all_reduce(pipeline)-> every stage

For S stages, M microbatches of b = B / M sequences, a device sends 2 (M + S - 1) b T D elements to its neighbour and
4 times 2 B T D (S-1)/S in all-reduces a step, in the compute dtype. Positions and the last norm are held by
every stage alike. A stage is idle for (S-1)/(M+S-1) of the ticks.
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
from strategies.step import Spread, Step, Strategy, Tokens, backpropagated, require_divides

AXES = ("pipeline",)
SPLIT = {"layers": "pipeline", "vocab": "pipeline"}
Stage = Callable[[list[Array], Array], Array]


def piped(model: GPT, tokens_BS: Tokens, stages: int, microbatches: int) -> Float[Array, " N"]:
    """The loss of each token, as `step.forward`."""
    graph, weights = nnx.split(model.blocks)

    def run(weights: list[Array], x_bTD: Array) -> Array:
        return model.run(x_bTD, nnx.merge(graph, jax.tree.unflatten(structure, weights)))

    leaves, structure = jax.tree.flatten(weights)
    x_BTD = model.embed(tokens_BS[:, :-1])
    x_MbTD = lax.pcast(x_BTD.reshape(microbatches, -1, *x_BTD.shape[1:]), "pipeline", to="varying")
    y_MbTD: Any = run_stages(run, stages, leaves, x_MbTD)
    last = lax.axis_index("pipeline") == stages - 1
    y_BTD = lax.psum(jnp.where(last, y_MbTD, 0), "pipeline").reshape(x_BTD.shape)
    # Each stage its own copy: their gradients are summed here, and not over tokens that another axis splits.
    return model.losses(lax.pcast(y_BTD, "pipeline", to="varying"), tokens_BS[:, 1:])


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


def _turn(t: Array, microbatches: int) -> tuple[Array, Array]:
    """Whether this stage works at tick t, and on which microbatch; where it does not, the index is a legal one."""
    m = t - lax.axis_index("pipeline")
    return (m >= 0) & (m < microbatches), jnp.clip(m, 0, microbatches - 1)


def _slots(shapes: Any, microbatches: int) -> Any:
    """Room for what is made of each microbatch, varying over the same axes as that."""
    return jax.tree.map(lambda like: jnp.zeros_like(like, shape=(microbatches, *like.shape)), shapes)


def _put(slots: Any, values: Any, m: Array) -> Any:
    return jax.tree.map(lambda slot, value: lax.dynamic_update_index_in_dim(slot, value, m, 0), slots, values)


def _forward(run: Stage, stages: int, weights: list[Array], x_MbTD: Array) -> tuple[Array, Any]:
    """Forward ticks; what the backward pass needs of each microbatch, but for the weights, goes into its slot."""
    first, microbatches, nothing_bTD = lax.axis_index("pipeline") == 0, x_MbTD.shape[0], jnp.zeros_like(x_MbTD[0])

    def made(x_bTD: Array) -> tuple[Array, Any]:
        pull: Any
        y_bTD, pull = jax.vjp(run, weights, x_bTD)  # `pull` holds what it keeps: of its arguments, and besides
        return y_bTD, (pull.args_res[1], pull.opaque_residuals)

    def work(x_bTD: Array, slots: Any, m: Array) -> tuple[Array, Any]:
        y_bTD, kept = made(x_bTD)
        return y_bTD, _put(slots, (y_bTD, kept), m)

    def idle(x_bTD: Array, slots: Any, m: Array) -> tuple[Array, Any]:
        return nothing_bTD, slots

    def tick(carry: tuple[Array, Any], t: Array) -> tuple[Any, None]:
        arrived_bTD, slots = carry
        working, m = _turn(t, microbatches)
        y_bTD, slots = lax.cond(working, work, idle, jnp.where(first, x_MbTD[m], arrived_bTD), slots, m)
        return (lax.ppermute(y_bTD, "pipeline", [(s, s + 1) for s in range(stages - 1)]), slots), None

    start = nothing_bTD, _slots(jax.eval_shape(made, nothing_bTD), microbatches)
    (_, (y_MbTD, kept)), _ = lax.scan(tick, start, jnp.arange(microbatches + stages - 1))
    return y_MbTD, (weights, kept)


def _backward(run: Stage, stages: int, saved: Any, dy_MbTD: Array) -> tuple[list[Array], Array]:
    """The same ticks from the last to the first. A working stage adds to the gradients of its weights in place."""
    weights, kept = saved
    stage, microbatches, nothing_bTD = lax.axis_index("pipeline"), dy_MbTD.shape[0], jnp.zeros_like(dy_MbTD[0])

    def work(dy_bTD: Array, dweights: list[Array], dx_MbTD: Array, m: Array) -> tuple[Array, list[Array], Array]:
        pull = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], weights, nothing_bTD)
        x_bTD, residuals = jax.tree.map(lambda slots: slots[m], kept)
        pull = dataclasses.replace(pull, args_res=[tuple(weights), x_bTD], opaque_residuals=residuals)
        more, dx_bTD = pull(dy_bTD)
        return dx_bTD, jax.tree.map(jnp.add, dweights, more), _put(dx_MbTD, dx_bTD, m)

    def idle(dy_bTD: Array, dweights: list[Array], dx_MbTD: Array, m: Array) -> tuple[Array, list[Array], Array]:
        return nothing_bTD, dweights, dx_MbTD

    def tick(carry: tuple[Array, list[Array], Array], t: Array) -> tuple[Any, None]:
        arrived_bTD, dweights, dx_MbTD = carry
        working, m = _turn(t, microbatches)
        dy_bTD = jnp.where(stage == stages - 1, dy_MbTD[m], arrived_bTD)
        dx_bTD, dweights, dx_MbTD = lax.cond(working, work, idle, dy_bTD, dweights, dx_MbTD, m)
        sent_bTD = lax.ppermute(dx_bTD, "pipeline", [(s + 1, s) for s in range(stages - 1)])
        return (sent_bTD, dweights, dx_MbTD), None

    start = nothing_bTD, jax.tree.map(jnp.zeros_like, weights), _slots(nothing_bTD, microbatches)
    (_, dweights, dx_MbTD), _ = lax.scan(tick, start, jnp.arange(microbatches + stages - 1), reverse=True)
    return dweights, jnp.where(stage == 0, dx_MbTD, 0)


run_stages.defvjp(_forward, _backward)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`."""
    device_mesh = mesh.over(AXES, devices)
    require_divides("pipeline", mesh.size, layers=config.layers)
    spread = Spread(
        spec=lambda dims: P(*map(SPLIT.get, dims)),
        vocab_shards=mesh.size,
        hooks=tensor.vocab_hooks(AXES),
        differentiate=backpropagated(partial(piped, stages=mesh.size, microbatches=train.microbatches)),
    )
    return assemble(config, device_mesh, train, spread)


PIPELINE = Strategy("pipeline", AXES, build)
