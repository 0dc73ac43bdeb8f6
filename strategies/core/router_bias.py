"""Load balancing without a loss: biases of experts that follow their loads (Wang et al. 2024, algorithm 1).

The router chooses experts by score plus bias (model/router.py). A bias is a weight, so it is sharded, gathered and
saved like one, and its gradient is summed over microbatches and devices like any other. But this gradient is the
expert's load: its choices less the mean of all experts, over the tokens of the batch (`router.load_term`). After a
step the bias moves by `GPTConfig.router_bias_rate` against the sign of its load. The optimizer sees no biases: they
have no moments and no weight decay, and are not in the norm.
"""

from typing import Any

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.model.gpt import weight_specs
from strategies.model.weights import Weights
from strategies.step import Optimizer


def without_biases(weights: Weights, config: GPTConfig) -> tuple[Weights, dict[str, Any]]:
    """A tree of all weights -> the tree of those that the optimizer trains, and the rest by name."""
    if config.router_bias_rate is None:
        return weights, {}
    flat, specs = flatten_dict(weights, sep="."), weight_specs(config)
    trained = {name: array for name, array in flat.items() if specs[name].trained}
    return unflatten_dict(trained, sep="."), {name: flat[name] for name in flat if name not in trained}


def moves_biases(optimizer: Optimizer, specs: Weights, config: GPTConfig, train: TrainConfig) -> Optimizer:
    """Wrap an optimizer of the weights without biases, if the router has biases.

    Args:
        optimizer: of the weights that `without_biases` gives.
        specs: how gradients are sharded, biases included.
        config: the model.
        train: the size of the batch.
    """
    rate = config.router_bias_rate
    if rate is None:
        return optimizer
    # Loads are multiples of 1 / (tokens x experts). Rounded to them, a load of zero is zero for any order of the sums.
    units = train.batch_size * config.sequence * config.dim_sizes["experts"]

    def update(grads: Weights, state: Any, weights: Weights) -> tuple[Weights, Any, Array]:
        grads, loads = without_biases(grads, config)
        updates, state, norm = optimizer.update(grads, state, without_biases(weights, config)[0])
        moves = {name: -rate * jnp.sign(jnp.round(load * units)) for name, load in loads.items()}
        return unflatten_dict({**flatten_dict(updates, sep="."), **moves}, sep="."), state, norm

    return Optimizer(
        takes=lambda weights: (weights, specs),
        init=lambda weights: optimizer.init(without_biases(weights, config)[0]),
        specs=optimizer.specs,
        update=update,
    )
