"""Pipeline parallel in the order of GPipe (Huang et al. 2019, section 2.2): all forward, then all backward.

Each device is a stage and holds the layers of one. The batch goes through in microbatches: at tick t stage s works on
microbatch t - s, and where there is none it computes nothing. Embedding and head are cut over the vocabulary and
shared among all stages, so that no stage holds or computes more than another (Yeung et al. 2024, "Balancing Pipeline
Parallelism with Vocabulary Parallelism").

    x[b,T,D] of a microbatch -permute(pipeline)-> the next stage, at each of M + S - 1 ticks; backward dx the other way
    x[B,T,D] embedded, partial -all_reduce(pipeline)-> every stage; backward the same for dx, from the first stage
    x[B,T,D] of the last stage -all_reduce(pipeline)-> every stage, for the loss; backward the same for dx
    three numbers a token for the loss, as in tensor.py

For S stages, M microbatches of b = B / M sequences, a device sends 2 (M + S - 1) b T D elements to its neighbour and
4 times 2 B T D (S-1)/S in all-reduces a step, in the compute dtype; and sums of the gradients of what every stage
holds: positions and the last norm. A stage is idle for (S-1)/(M+S-1) of the ticks.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from strategies import tensor
from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.gpt import GPT
from strategies.mesh import MeshSpec
from strategies.step import Spread, Step, Strategy, Tokens, require_divides

AXES = ("pipeline",)
SPLIT = {"layers": "pipeline", "vocab": "pipeline"}


def piped(model: GPT, tokens_BS: Tokens, stages: int, microbatches: int) -> Float[Array, "N"]:
    """The loss of each token, in the place of `step.forward`."""
    x_BTD = model.embed(tokens_BS[:, :-1])
    x_MbTD = x_BTD.reshape(microbatches, -1, *x_BTD.shape[1:])
    y_MbTD = run_stages(model.run, x_MbTD, stages)
    return model.losses(y_MbTD.reshape(x_BTD.shape), tokens_BS[:, 1:])


def run_stages(
    run: Callable[[Array], Array], x_MbTD: Float[Array, "M b T D"], stages: int
) -> Float[Array, "M b T D"]:
    """All microbatches through all stages, from every device's copy of the input to every device's copy of the output.

    `run` is this device's stage. It may use collectives over other axes: the devices of a stage take one branch.
    """
    stage, microbatches = lax.axis_index("pipeline"), x_MbTD.shape[0]
    onward = [(s, s + 1) for s in range(stages - 1)]
    x_MbTD = lax.pcast(x_MbTD, "pipeline", to="varying")
    nothing_bTD = jnp.zeros_like(x_MbTD[0])

    def tick(arrived_bTD: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        t, entering_bTD = now
        working = (t >= stage) & (t < stage + microbatches)
        x_bTD = jnp.where(stage == 0, entering_bTD, arrived_bTD)
        y_bTD = lax.cond(working, run, lambda _: nothing_bTD, x_bTD)
        return lax.ppermute(y_bTD, "pipeline", onward), y_bTD

    ticks = jnp.arange(microbatches + stages - 1)
    entering = jnp.concatenate([x_MbTD, jnp.broadcast_to(nothing_bTD, (stages - 1, *nothing_bTD.shape))])
    _, left = lax.scan(tick, nothing_bTD, (ticks, entering))
    return lax.psum(jnp.where(stage == stages - 1, left[stages - 1 :], 0), "pipeline")


def build(
    config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Sequence[jax.Device] | None = None
) -> Step:
    """See `Strategy`."""
    require_divides("pipeline", mesh.size, layers=config.layers)
    spread = Spread(
        spec=lambda dims: P(*map(SPLIT.get, dims)),
        vocab_shards=mesh.size,
        hooks=tensor.vocab_hooks(AXES),
        forward=partial(piped, stages=mesh.size, microbatches=train.microbatches),
    )
    return assemble(config, mesh.over(AXES, devices), train, spread)


PIPELINE = Strategy("pipeline", AXES, build)
