"""Dynamic loss scaling for float16 (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2).

float16 has no normal numbers below 2^-14, and many gradients are smaller. The step differentiates the loss times a
scale, and divides the gradients by it in float32, before their norm is taken. The scale adapts: a step whose gradients
overflow is skipped and halves it, and `TrainConfig.loss_scale_growth_steps` steps in a row that do not overflow double
it. Scales are powers of two, so scaling rounds nothing.

An inf or NaN anywhere in the gradients makes their global norm inf or NaN. That norm is summed over devices anyway, so
all devices skip the same steps, and loss scaling sends nothing. `optax.apply_if_finite` skips such updates as well, but
decides by the updates that one device holds.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.config import LOSS_SCALES, TrainConfig
from strategies.model.weights import Weights
from strategies.step import Optimizer


class Scaled(NamedTuple):
    """State of an optimizer with loss scaling.

    Attributes:
        optimizer: state of the wrapped optimizer.
        loss_scale: factor of the loss in the next step, in float32.
        good_steps: steps without overflow since the scale last changed.
    """

    optimizer: Any
    loss_scale: Any
    good_steps: Any


def loss_scaled(optimizer: Optimizer, train: TrainConfig) -> Optimizer:
    """Wrap an optimizer: a step whose gradients are not finite changes nothing but the loss scale.

    Updates and state are selected element by element. A conditional would copy the state, where the step updates it in
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
