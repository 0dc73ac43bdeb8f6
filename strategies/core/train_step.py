"""The training step that all strategies share: differentiate, clip by the global norm, update.

The step runs inside `jax.shard_map`, on each device's shard of the weights and of the batch. This file communicates
only what the placement implies: gradient sums over replicas, the global norm, and the gather of weights updated in
shards. All other communication comes from the `Implementation`. With a `mode` on whole arrays (auto.py,
explicit.py) the same code runs on these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PRNGKeyArray

from strategies.arguments import described, guarded, jitted, require_instance, require_key
from strategies.config import TrainConfig
from strategies.core.expert_load import routed, total_load
from strategies.core.gradients import (
    accumulated,
    counted_once,
    prepare_weights,
    scatter_updates,
    split_summed_in_loop,
    sum_remaining,
    total_of_microbatches,
    with_copies,
)
from strategies.core.layer_reduction import sum_by_layer
from strategies.core.matrices import Muon
from strategies.core.optimizer import loss_scaled, moves_biases
from strategies.core.placement import Placement, Split, Weight, partition
from strategies.core.plan import Plan
from strategies.core.rules import OPTIMIZER_SCOPE, clipped, rule_of, without_biases
from strategies.core.shards import gather_updated, held, own_parts
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.gpt import GPT, Collect
from strategies.model.weights import Weights, nested
from strategies.step import Divisor, Implementation, Load, LossTerms, Metrics, Optimizer, State, Step, Tokens


def assemble(plan: Plan, mesh: Mesh, implementation: Implementation) -> Step:
    """Assemble the step of a strategy on devices. Nothing is lowered or compiled yet."""
    if plan.train.reduce == "layer":
        implementation = sum_by_layer(implementation, plan)
    return _Assembly(plan, mesh, implementation).step()


@dataclass(frozen=True)
class _Assembly:
    """The functions of a step, and the shardings of their arguments and results."""

    plan: Plan
    mesh: Mesh
    implementation: Implementation

    @property
    def config(self) -> GPTConfig:
        return self.plan.config

    @property
    def train(self) -> TrainConfig:
        return self.plan.train

    @property
    def placement(self) -> Placement:
        return self.plan.placement

    @property
    def whole(self) -> bool:
        """Whether the functions see whole arrays."""
        return self.implementation.mode != "shard_map"

    @property
    def scales_loss(self) -> bool:
        return self.train.dtype == "float16"

    @cached_property
    def specs(self) -> Weights:
        return self._partitioned(lambda weight: weight.stored)

    @cached_property
    def update_specs(self) -> Weights:
        return self._partitioned(lambda weight: weight.updated)

    def _partitioned(self, split_of: Callable[[Weight], Split]) -> Weights:
        return nested({name: partition(split_of(weight)) for name, weight in self.plan.weights.items()})

    @cached_property
    def optimizer(self) -> Optimizer:
        auto = self.implementation.mode == "auto"
        once = partial(counted_once, plan=self.plan)
        specs, _ = without_biases(self.update_specs, self.config)
        rule = rule_of(self.train, specs, Muon(self.plan, self.whole))
        optimizer = clipped(rule, self.train, specs, once, whole=auto)
        if self.config.router_bias_rate is not None:
            optimizer = moves_biases(optimizer, self.update_specs, self.config, self.train)
        what = "what `optimizer` of the implementation returned"
        optimizer = require_instance(self.implementation.optimizer(optimizer), Optimizer, what, TypeError)
        return loss_scaled(optimizer, self.train) if self.scales_loss else optimizer

    @property
    def layer_slots(self) -> tuple[int, ...] | None:
        """The layer in each slot of the stacked blocks, -1 for none; None if in order."""
        return self.plan.slots if self.plan.staged else None

    @cached_property
    def abstract(self) -> tuple[Any, Weights]:
        """The structure of the model without weights, and the shapes and dtypes of its weights."""
        graph, params = nnx.split(nnx.eval_shape(lambda: self.create(0)), nnx.Param)
        return graph, jax.eval_shape(partial(with_copies, plan=self.plan), nnx.to_pure_dict(params))

    def create(self, key: PRNGKeyArray | int) -> GPT:
        return GPT(
            self.config,
            self.train,
            nnx.Rngs(key),
            padded_vocab=self.plan.padded_vocab,
            layer_slots=self.layer_slots,
            hooks=self.implementation.hooks,
            attention=self.plan.kernel(partitioned=self.implementation.mode == "auto"),
        )

    def init(self, key: PRNGKeyArray) -> State:
        weights = nnx.to_pure_dict(nnx.state(self.create(key), nnx.Param))
        return self.initial_state(with_copies(weights, self.plan))

    def initial_state(self, params: Weights) -> State:
        """The state before the first step, with these float32 weights."""
        held_params, master = held(params, self.config, self.train)
        return State(held_params, self.optimizer.init(params), master)

    def loss_and_grads(self, divisor: Divisor, params: Weights, tokens_BS: Tokens) -> tuple[LossTerms, Weights]:
        """This device's share of the loss and gradients of a microbatch or batch."""
        found = self.implementation.differentiate(partial(nnx.merge, self.abstract[0]), params, tokens_BS, divisor)
        loss, grads = require_gradients(found, params, "differentiate")
        if self.placement.reduce_scatter_per_microbatch:
            remaining, summed = split_summed_in_loop(grads, self.plan)
            grads = {**scatter_updates(remaining, self.plan), **summed}
        return loss, grads

    def gradients(self, state: State, tokens_BS: Tokens) -> tuple[LossTerms, Weights]:
        token_count = self.train.batch_size * self.config.sequence
        if not self.scales_loss:
            return self.summed(token_count, state.params, tokens_BS)
        scale = state.optimizer.loss_scale
        summed = self.summed(token_count / scale, state.params, tokens_BS)
        return jax.tree.map(lambda scaled: scaled / scale, summed)

    def first_half(self, state: State, tokens_BS: Tokens) -> tuple[Array, Weights]:
        """The first half of the step; its loss is the mean of the tokens' losses only."""
        loss, grads = self.gradients(state, tokens_BS)
        return loss["loss"], grads

    def summed(self, divisor: Divisor, params: Weights, tokens_BS: Tokens) -> tuple[LossTerms, Weights]:
        """The sum of all losses divided by `divisor`, and its gradients, summed over microbatches and devices."""
        strategy, plan = self.implementation, self.plan
        microbatches = 1 if strategy.schedules_microbatches else self.train.microbatches
        differentiate = accumulated(partial(self.loss_and_grads, divisor), microbatches)
        # By default GPUs and TPUs multiply float32 in reduced precision (TF32, bfloat16 passes).
        with jax.default_matmul_precision("highest" if self.train.dtype == "float32" else "default"):
            loss, grads = differentiate(self.prepared(params), tokens_BS)
            if strategy.reduce:
                return require_gradients(strategy.reduce(loss, grads), grads, "reduce")
            return sum_remaining(loss, grads, plan)

    def prepared(self, params: Weights, *, evaluated: bool = False) -> Weights:
        prepare = self.implementation.prepare
        return prepare(params) if prepare else prepare_weights(params, self.plan, evaluated=evaluated)

    def evaluate(self, params: Weights, tokens_BS: Tokens) -> Array:
        """The mean loss of a batch, computed forward, microbatch by microbatch."""
        axes = () if self.whole else (*self.placement.batch, *self.placement.tokens)
        loss = self.forward(params, tokens_BS) / (self.train.batch_size * self.config.sequence)
        return lax.psum(loss, axes) if axes else loss

    def load(self, params: Weights, tokens_BS: Tokens) -> Load:
        if not self.config.experts:
            raise Infeasible(f"experts={self.config.experts}: there is no load; use a model with experts")
        load_LX = self.forward(params, tokens_BS, routed)
        return total_load(load_LX, self.plan, whole=self.whole)

    def forward(self, params: Weights, tokens_BS: Tokens, collect: Collect | None = None) -> Array:
        """The sum of the tokens' losses, or of what `collect` finds in each layer, over microbatches."""
        build, strategy = partial(nnx.merge, self.abstract[0]), self.implementation
        microbatches = 1 if strategy.schedules_microbatches else self.train.microbatches

        def total(tokens_bS: Tokens) -> Array:
            found = strategy.forward(build, weights, tokens_bS, collect)
            if not isinstance(found, tuple) or len(found) != 2:
                needed = "the loss of each token, and the auxiliary losses or what was collected"
                raise TypeError(f"`forward` of the implementation returned {described(found)}; it must return {needed}")
            return found[1] if collect else found[0].sum()

        with jax.default_matmul_precision("highest" if self.train.dtype == "float32" else "default"):
            weights = self.prepared(params, evaluated=True)
            return total_of_microbatches(total, tokens_BS, microbatches)

    def apply(self, state: State, grads: Weights) -> tuple[State, Metrics]:
        in_parts = bool(self.placement.updates)
        params = state.master or (own_parts(state.params, self.plan) if in_parts else state.params)
        with jax.named_scope(OPTIMIZER_SCOPE):
            changes, optimizer_state, norm = self.optimizer.update(grads, state.optimizer, params)
        updated: Any = optax.apply_updates(params, changes)
        new_params, master = held(updated, self.config, self.train)
        new_params = gather_updated(new_params, state.params, self.plan) if in_parts else new_params
        scale = {"loss_scale": state.optimizer.loss_scale} if self.scales_loss else {}
        return State(new_params, optimizer_state, master), {"grad_norm": norm, **scale}

    def update(self, state: State, tokens_BS: Tokens) -> tuple[State, Metrics]:
        loss, grads = self.gradients(state, tokens_BS)
        state, metrics = self.apply(state, grads)
        return state, {**loss, **metrics}

    def step(self) -> Step:
        """The `Step`: these functions, jitted over the mesh, with the shapes and shardings of their arguments."""
        shapes = jax.eval_shape(self.initial_state, self.abstract[1])
        grads, grad_specs = self.optimizer.takes(self.abstract[1])
        state_specs = State(self.specs, self.optimizer.specs(shapes.optimizer), shapes.master and self.update_specs)
        tokens = jax.ShapeDtypeStruct((self.train.batch_size, self.config.sequence + 1), jnp.int32)
        state = jax.tree.map(self.placed, shapes, state_specs)
        grads = jax.tree.map(self.placed, grads, grad_specs)
        batch = self.placed(tokens, P(self.placement.batch or None))
        shardings = jax.tree.map(partial(NamedSharding, self.mesh), state_specs)
        function = partial(jitted, self.mesh, self.implementation.mode)
        return Step(
            config=self.config,
            mesh=self.mesh,
            train=self.train,
            init=guarded(jax.jit(self.init, out_shardings=shardings), require_key),
            update=function(self.update, {"state": state, "batch": batch}, (state_specs, P()), donate_argnums=(0,)),
            gradients=function(self.first_half, {"state": state, "batch": batch}, (P(), grad_specs)),
            apply=function(self.apply, {"state": state, "grads": grads}, (state_specs, P())),
            evaluation=function(self.evaluate, {"params": state.params, "batch": batch}, P()),
            load=function(self.load, {"params": state.params, "batch": batch}, Load._make(3 * [P()])),
            state=state,
            grads=grads,
            batch=batch,
            layer_slots=self.layer_slots,
            inexact=self.implementation.inexact or ("matrices=block" if self.train.matrices == "block" else ""),
        )

    def placed(self, array: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(self.mesh, spec))


def require_gradients(found: Any, like: Weights, hook: str) -> tuple[LossTerms, Weights]:
    """Return the loss terms and gradients of an `Implementation`'s function after checking them."""
    loss, grads = found if isinstance(found, tuple | list) and len(found) == 2 else (None, {})
    if isinstance(loss, dict) and "loss" in loss and jax.tree.structure(grads) == jax.tree.structure(like):
        return loss, grads
    what = f"{len(found)} values" if isinstance(found, tuple | list) else described(found)
    needed = 'two values: the terms of the loss by name, with "loss" among them, and the tree of gradients'
    raise TypeError(f"`{hook}` of the implementation returned {what}; it must return {needed} that it was given")
