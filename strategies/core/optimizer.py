"""Router biases and loss scaling, which wrap the optimizer (rules.py).

Router biases balance the load without a loss (Wang et al. 2024, algorithm 1). The router chooses experts by score plus
bias (model/router.py). A bias is sharded, gathered and saved like any weight, and its gradient is summed over
microbatches and devices. But this gradient is the expert's load: its choices minus the mean over experts, over the
tokens of the batch (`router.load_term`). After a step the bias moves by `GPTConfig.router_bias_rate` against the sign
of its load. The rule does not see biases: they have no moments and no weight decay, and are not in the norm.

In float16 the loss is scaled (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2), because many
gradients are below 2^-14, float16's smallest normal number. The step differentiates the loss times a scale, and divides
the gradients by it in float32, before their norm is computed. The scale adapts: a step whose gradients overflow is
skipped and halves it; `TrainConfig.loss_scale_growth_steps` consecutive steps without overflow double it. Scales are
powers of two, so scaling rounds nothing. An inf or NaN anywhere in the gradients makes their global norm inf or NaN.
That norm is summed over devices anyway, so all devices skip the same steps, and loss scaling sends nothing.
`optax.apply_if_finite` also skips such updates, but decides by each device's own updates.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.config import LOSS_SCALES, TrainConfig
from strategies.core.rules import without_biases
from strategies.gpt_config import GPTConfig
from strategies.model.weights import Weights, by_name, nested
from strategies.step import Optimizer


def moves_biases(optimizer: Optimizer, specs: Weights, config: GPTConfig, train: TrainConfig) -> Optimizer:
    """Wrap an optimizer of the weights without biases (`without_biases`), for a router with biases."""
    rate = config.router_bias_rate
    assert rate is not None
    # Loads are multiples of 1 / (tokens x experts). After rounding to them, a zero load is zero in any order of
    # summation.
    units = train.batch_size * config.sequence * config.dim_sizes["experts"]

    def update(grads: Weights, state: Any, weights: Weights) -> tuple[Weights, Any, Array]:
        grads, loads = without_biases(grads, config)
        updates, state, norm = optimizer.update(grads, state, without_biases(weights, config)[0])
        moves = {name: -rate * jnp.sign(jnp.round(load * units)) for name, load in loads.items()}
        return nested({**by_name(updates), **moves}), state, norm

    return Optimizer(
        takes=lambda weights: (weights, specs),
        init=lambda weights: optimizer.init(without_biases(weights, config)[0]),
        specs=optimizer.specs,
        update=update,
    )


class Scaled(NamedTuple):
    """State of an optimizer with loss scaling.

    `optimizer` is the wrapped state, `loss_scale` the float32 factor of the next step's loss, and `good_steps` counts
    steps without overflow since the scale last changed.
    """

    optimizer: Any
    loss_scale: Any
    good_steps: Any


def loss_scaled(optimizer: Optimizer, train: TrainConfig) -> Optimizer:
    """Wrap an optimizer: a step whose gradients are not finite changes nothing but the loss scale.

    Updates and state are selected element by element. A conditional would copy the state, which the step updates in
    place.
    """

    def init(weights: Weights) -> Scaled:
        return Scaled(optimizer.init(weights), jnp.float32(train.loss_scale), jnp.int32(0))

    def specs(state: Scaled) -> Scaled:
        return Scaled(optimizer.specs(state.optimizer), P(), P())

    def update(grads: Weights, state: Scaled, weights: Weights) -> tuple[Weights, Scaled, Array]:
        updates, inner, norm = optimizer.update(grads, state.optimizer, weights)
        finite = jnp.isfinite(norm)
        select = partial(jnp.where, finite)
        updates = jax.tree.map(lambda change: select(change, 0), updates)
        return updates, Scaled(jax.tree.map(select, inner, state.optimizer), *_adapted(state, finite, train)), norm

    return optimizer._replace(init=init, specs=specs, update=update)


def _adapted(state: Scaled, finite: Array, train: TrainConfig) -> tuple[Array, Array]:
    """The loss scale and the count of good steps after a step."""
    good_steps = jnp.where(finite, state.good_steps + 1, 0)
    grows = good_steps == train.loss_scale_growth_steps
    factor = jnp.where(finite, jnp.where(grows, 2.0, 1.0), 0.5)
    return jnp.clip(state.loss_scale * factor, *LOSS_SCALES), jnp.where(grows, 0, good_steps)
