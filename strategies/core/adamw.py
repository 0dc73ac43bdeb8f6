"""AdamW (Loshchilov & Hutter 2019) with clipping by the global norm, as an `Optimizer` of sharded gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.config import TrainConfig
from strategies.core.gradients import global_norm
from strategies.core.learning_rate import learning_rate_at
from strategies.model.weights import Weights
from strategies.step import Optimizer


def adamw(
    train: TrainConfig, specs: Weights, once: Callable[[Weights], Weights] = lambda grads: grads, *, whole: bool = False
) -> Optimizer:
    """AdamW with clipping by the global norm.

    Args:
        train: the hyperparameters.
        specs: how gradients and moments are sharded.
        once: gradients -> those whose norm counts each weight once, where devices hold copies.
        whole: whether `update` sees whole arrays, which the compiler partitions.
    """

    def at(updates: Any) -> optax.GradientTransformation:
        rate = learning_rate_at(train, updates)
        return optax.adamw(rate, train.beta1, train.beta2, eps=train.epsilon, weight_decay=train.weight_decay)

    adamw = at(0)  # its state does not depend on the learning rate

    def state_specs(state: Any) -> Any:
        return optax.tree_map_params(adamw, lambda _, spec: spec, state, specs, transform_non_params=lambda _: P())

    def update(grads: Weights, state: Any, weights: Weights) -> tuple[Weights, Any, Array]:
        norm = global_norm(once(grads), jax.tree.map(lambda _: P(), specs) if whole else specs)
        clip = 1 / jnp.maximum(norm / train.clip_norm, 1)
        updates: Any
        updates, state = at(optax.tree.get(state, "count")).update(
            jax.tree.map(lambda g: g * clip, grads), state, weights
        )
        return updates, state, norm

    return Optimizer(lambda weights: (weights, specs), adamw.init, state_specs, update)
