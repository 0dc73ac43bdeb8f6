"""Optimizers on sharded gradients: clipping by the global norm, then a rule: AdamW, Muon or SGD.

AdamW (Loshchilov & Hutter 2019) is optax's. SGD has PyTorch's momentum. Weight decay is decoupled in all three.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") updates each matrix of the layers
by its orthogonalised momentum (matrices.py), as `torch.optim.Muon` does:

    m = b m + (1 - b) g        u = b m + (1 - b) g with `nesterov`, else m
    w = w - rate (decay w + scale NS(u))

optax corrects the momentum's bias in the first steps; this changes u only by the weights of its two terms. Vectors,
tables, the head and the router have AdamW.

The learning rate is constant, or a linear warmup followed by a cosine decay (Loshchilov & Hutter 2017, "SGDR").
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.config import TrainConfig
from strategies.core.gradients import cast, global_norm
from strategies.core.matrices import Muon
from strategies.gpt_config import GPTConfig
from strategies.model.gpt import weight_specs
from strategies.model.weights import Weights, by_name, nested
from strategies.step import Optimizer

OPTIMIZER_SCOPE = "optimizer"
"""The scope of what the optimizer computes, in the names of a program's instructions."""


class Rule(NamedTuple):
    """A rule of updates.

    Attributes:
        init: weights -> its state.
        specs: its state -> partition specs.
        update: (clipped gradients, state, weights) -> (what to add to the weights, state).
    """

    init: Callable[[Weights], Any]
    specs: Callable[[Any], Any]
    update: Callable[[Weights, Any, Weights], tuple[Weights, Any]]


class Momenta(NamedTuple):
    """State of Muon and SGD: the momentum of matrices, or of all weights with SGD, and AdamW's state of the rest.

    A checkpoint has the same names as with AdamW, without second moments of weights that have a momentum.
    """

    optimizer: Any
    mu: Weights


def clipped(
    rule: Rule,
    train: TrainConfig,
    specs: Weights,
    once: Callable[[Weights], Weights] = lambda grads: grads,
    *,
    whole: bool = False,
) -> Optimizer:
    """A rule of updates, after clipping by the global norm, for gradients that are sharded by `specs`.

    `once` maps gradients to gradients whose norm counts each weight once, if devices hold copies. `whole` is whether
    sums over whole arrays need no collective here, because the compiler inserts it.
    """

    def update(grads: Weights, state: Any, weights: Weights) -> tuple[Weights, Any, Array]:
        norm = global_norm(once(grads), jax.tree.map(lambda _: P(), specs) if whole else specs)
        clip = 1 / jnp.maximum(norm / train.clip_norm, 1)
        return *rule.update(jax.tree.map(lambda g: g * clip, grads), state, weights), norm

    return Optimizer(lambda weights: (weights, specs), rule.init, rule.specs, update)


def rule_of(train: TrainConfig, specs: Weights, muon: Muon) -> Rule:
    """The rule of `TrainConfig.optimizer`, for gradients and state that are sharded by `specs`."""
    return adamw_rule(train, specs) if train.optimizer == "adamw" else momentum_rule(train, specs, muon)


def adamw_rule(train: TrainConfig, specs: Weights) -> Rule:
    """AdamW."""

    def at(updates: Any) -> optax.GradientTransformation:
        rate = learning_rate_at(train, updates)
        return optax.adamw(rate, train.beta1, train.beta2, eps=train.epsilon, weight_decay=train.weight_decay)

    adamw = at(0)  # its state does not depend on the learning rate

    def state_specs(state: Any) -> Any:
        return optax.tree_map_params(adamw, lambda _, spec: spec, state, specs, transform_non_params=lambda _: P())

    def update(grads: Weights, state: Any, weights: Weights) -> tuple[Any, Any]:
        return at(optax.tree.get(state, "count")).update(grads, state, weights)

    return Rule(adamw.init, state_specs, update)


def momentum_rule(train: TrainConfig, specs: Weights, muon: Muon) -> Rule:
    """Muon for matrices, and AdamW for the rest; or SGD for all weights."""
    is_muon = train.optimizer == "muon"
    names = {*muon.weights} if is_muon else {*by_name(specs)}

    def split(weights: Weights) -> tuple[dict[str, Array], Weights]:
        flat = by_name(weights)
        rest = {name: each for name, each in flat.items() if name not in names}
        return {name: flat[name] for name in flat if name in names}, nested(rest)

    own_specs, other_specs = split(specs)
    others = adamw_rule(train, other_specs)

    def init(weights: Weights) -> Momenta:
        own, rest = split(weights)
        return Momenta(
            others.init(rest), nested({name: jnp.zeros_like(own[name], train.momentum_dtype) for name in own})
        )

    def update(grads: Weights, state: Momenta, weights: Weights) -> tuple[Weights, Momenta]:
        (own_grads, other_grads), (own, rest) = split(grads), split(weights)
        share = 1 - train.momentum if is_muon else 1.0
        directions, mu = with_momentum(train, own_grads, by_name(state.mu), share)
        directions = muon.orthogonalised(directions) if is_muon else directions
        rate = learning_rate_at(train, optax.tree.get(state.optimizer, "count"))
        changes = jax.tree.map(lambda each, weight: -rate * (each + train.weight_decay * weight), directions, own)
        other_changes, optimizer = others.update(other_grads, state.optimizer, rest)
        return nested({**by_name(other_changes), **changes}), Momenta(optimizer, nested(mu))

    return Rule(init, lambda state: Momenta(others.specs(state.optimizer), nested(own_specs)), update)


def with_momentum(train: TrainConfig, grads: Weights, mu: Weights, share: float) -> tuple[Weights, Weights]:
    """Directions of the update, and the new momentum, to which `share` of the gradients is added."""

    def add(momentum: Array, grad: Array) -> Array:
        return train.momentum * momentum.astype("float32") + share * grad

    new = jax.tree.map(add, mu, grads)
    return jax.tree.map(add, new, grads) if train.nesterov else new, cast(new, train.momentum_dtype)


def learning_rate_at(train: TrainConfig, updates: Any) -> Any:
    """The learning rate of the next update: a Python float if it is constant, so that the compiled step has a constant.

    `updates` is the only count of updates in the state. It may be traced. Update k of w warmup updates has k / (w + 1)
    of the peak, from k = 1.
    """
    peak, warmup = train.learning_rate, train.warmup_steps
    if warmup == 0 and train.decay_steps is None:
        return peak
    after = optax.constant_schedule(peak)
    if train.decay_steps is not None:
        after = optax.cosine_decay_schedule(peak, train.decay_steps - warmup, train.final_learning_rate / peak)
    before = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    return (optax.join_schedules([before, after], [warmup]) if warmup else after)(updates)


def without_biases(weights: Weights, config: GPTConfig) -> tuple[Weights, dict[str, Any]]:
    """All weights -> the tree of weights that the optimizer trains, and the other weights by name."""
    flat, specs = by_name(weights), weight_specs(config)
    trained = {name: array for name, array in flat.items() if specs[name].trained}
    return nested(trained), {name: flat[name] for name in flat if name not in trained}
