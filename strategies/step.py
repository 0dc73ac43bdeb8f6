"""The interface of a training step, which every strategy builds.

A strategy is a list of mesh axes. This is how it builds a step, and what a step runs:

    Strategy.build      strategy.py            builds the three below
    Plan.of             core/plan.py           resolves "auto" options, and refuses what does not fit
    placed              core/placement.py      how each weight is used, stored and updated
    Axis.implement      fsdp.py, tensor.py ..  the functions of each axis, together an `Implementation`
    assemble            core/train_step.py     makes the `Step` from both, in `jax.shard_map`

    update              core/train_step.py     on each device: gradients, then `apply`
    Layers              model/layers.py        the loop over layers, which calls the hooks (model/hooks.py)
    sum_remaining       core/gradients.py      sums loss and gradients that no hook has summed
    clipped             core/rules.py          clipping, and the update of the weights
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from strategies.arguments import Jitted, require_functions, require_instance, require_placed, require_present
from strategies.backends.pace import keep_pace
from strategies.backends.xla_options import as_read
from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.model.gpt import GPT, Collect
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.layers import Extras, added
from strategies.model.weights import Weights
from strategies.tokens import CheckedBatches, as_array, as_tokens

Tokens = Int[Array, "B S"]
"""Sequences of S = T + 1 tokens: all but the last are inputs, all but the first are targets."""
Metrics = dict[str, Float[Array, ""]]


class State(NamedTuple):
    """The training state, which a step takes and returns. It is created sharded."""

    params: Weights
    optimizer: Any
    """The moments and count of the optimizer, AdamW's in optax's structure, and any other optimizer state."""
    master: Any = None
    """Float32 weights that the optimizer updates, if `params` have another dtype (core/shards.py)."""


class Load(NamedTuple):
    """The load of E experts in each of L layers, for one batch, in float32, without multi-token prediction's block.

    Attributes:
        choices_LE: tokens that chose each expert.
        probs_LE: router probability of each expert, summed over tokens.
        dropped_L: choices dropped because they exceed an expert's capacity.
    """

    choices_LE: Float[Array, "L E"]
    probs_LE: Float[Array, "L E"]
    dropped_L: Float[Array, " L"]


LossTerms = dict[str, Float[Array, ""]]
"""The mean cross entropy of the tokens, as "loss", and other losses by name (`Extras`). Gradients are of the sum."""


def forward(model: GPT, tokens_BS: Tokens, collect: Collect | None = None) -> tuple[Float[Array, " N"], Any]:
    """The loss of each token of sequences [B,T+1], N = B x T, and the auxiliary losses of all blocks (`Extras`); or
    what `collect` finds in each block, stacked.
    """
    x_BTD, found = model.run(model.embed(tokens_BS[:, :-1]), collect)
    losses_N = model.losses(x_BTD, tokens_BS[:, 1:])
    return losses_N, found if collect else jax.tree.map(model.hooks.replicated_loss, found)


def forward_to_train(model: GPT, tokens_BS: Tokens) -> tuple[Float[Array, " N"], Extras]:
    """`forward`, whose auxiliary losses include those of multi-token prediction."""
    x_BTD, next_BTD = model.embed_with_next(tokens_BS)
    x_BTD, extras = model.run(x_BTD)
    losses_N, more = model.training_losses(x_BTD, tokens_BS[:, 1:], next_BTD)
    return losses_N, added(jax.tree.map(model.hooks.replicated_loss, extras), more)


Divisor = int | Array
"""Divisor of the summed losses: the number of tokens in the global batch; in float16, divided by the loss scale."""
Differentiate = Callable[[Callable[[Weights], GPT], Weights, Tokens, Divisor], tuple[LossTerms, Weights]]
"""(function from weights to a model, weights, this device's sequences, divisor) -> (this device's part of the loss, and
of its gradients). In float16 both are scaled."""


def autodiff(
    build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, divisor: Divisor
) -> tuple[LossTerms, Weights]:
    """The default `Differentiate`: loss and gradients by autodiff of the forward pass."""

    def objective(weights: Weights) -> tuple[Array, LossTerms]:
        losses_N, extras = forward_to_train(build(weights), tokens_BS)
        terms = {name: total / divisor for name, total in {"loss": losses_N.sum(), **extras}.items()}
        return functools.reduce(jnp.add, terms.values()), terms

    (_, terms), grads = jax.value_and_grad(objective, has_aux=True)(weights)
    return terms, grads


Forward = Callable[[Callable[[Weights], GPT], Weights, Tokens, Collect | None], tuple[Float[Array, " N"], Any]]
"""(function from weights to a model, weights, this device's sequences, collect) -> what `forward` of the model returns.
What was collected is in the order of slots (`Step.layer_slots`)."""


class Optimizer(NamedTuple):
    """An optimizer with sharded state.

    Attributes:
        takes: shapes of the weights -> shapes and partition specs of the gradients that `update` takes.
        specs: the state -> its partition specs.
        update: (gradients, state, weights) -> (what to add to the weights, state, global norm of the gradients). It
            runs inside `jax.shard_map`.
    """

    takes: Callable[[Weights], tuple[Weights, Weights]]
    init: Callable[[Weights], Any]
    specs: Callable[[Any], Any]
    update: Callable[[Weights, Any, Weights], tuple[Weights, Any, Array]]


@dataclass(frozen=True)
class Implementation:
    """The functions by which the axes of a strategy change a step. The defaults are for one device.

    An axis sets the fields that it changes, and no other axis of the mesh may set the same. The functions run inside
    `jax.shard_map` unless `mode` says otherwise.

    Attributes:
        hooks: functions that the model calls, for communication inside it.
        differentiate: this device's shard of the batch, or of a microbatch -> its part of loss and gradients.
        schedules_microbatches: whether `differentiate` takes all microbatches and orders them itself, as a pipeline
            does. Otherwise gradients are accumulated, microbatch by microbatch.
        forward: a forward pass alone of this device's shard of the batch or of a microbatch, as for `differentiate`.
        reduce: each device's part of loss and gradients -> their sums; None is `gradients.sum_remaining`.
        sum_layer: one layer's gradients -> their sums over replicas, in the backward loop (layer_reduction.py).
        optimizer: the optimizer with clipping -> the one that replaces it.
        inexact: why the step, by design, does not compute what one device computes; empty if it does.
        prepare: stored weights -> the weights to differentiate; None is `gradients.prepare_weights`.
        mode: where the functions run: inside `jax.shard_map`; or on whole arrays, which the compiler partitions, by its
            own choice ("auto") or by the types of the arrays ("explicit").

    Raises:
        TypeError: a field is no function, or one that takes another number of arguments.
    """

    hooks: Hooks = ONE_DEVICE
    differentiate: Differentiate = autodiff
    schedules_microbatches: bool = False
    forward: Forward = lambda build, weights, tokens_BS, collect: forward(build(weights), tokens_BS, collect)
    reduce: Callable[[LossTerms, Weights], tuple[LossTerms, Weights]] | None = None
    sum_layer: Callable[[list[Array]], list[Array]] | None = None
    optimizer: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer
    inexact: str = ""
    prepare: Callable[[Weights], Weights] | None = None
    mode: Literal["shard_map", "auto", "explicit"] = "shard_map"

    def __post_init__(self) -> None:
        require_functions(self)
        require_functions(self.hooks)


@dataclass(frozen=True)
class Step:
    """One training step on one mesh: `state, metrics = step(state, batch)`.

    Attributes:
        init: key -> `State`, created sharded: no device ever holds a sharded array as a whole.
        update: the jitted step, (state, batch) -> (state, {"loss", "grad_norm"}); it donates the state. Auxiliary
            losses are separate metrics (`LossTerms`). In float16 there is "loss_scale", and a step whose "grad_norm" is
            inf or NaN was skipped.
        gradients: the first half of `update`, jitted: (state, batch) -> (loss, gradients before clipping).
        apply: the second half, jitted: (state, gradients) -> (state, all metrics but "loss"). Neither half donates its
            arguments.
        evaluation: the jitted function behind `evaluate`. It does not donate its arguments.
        load: (weights, batch) -> `Load`, by a forward pass, jitted. It raises Infeasible without experts.
        state, batch, grads: shapes, dtypes and shardings of the state, of a batch, and of the gradients that `apply`
            takes.
        layer_slots: the layer in each slot of the stacked blocks, -1 for none; None if they are in order.
        inexact: why the step, by design, does not compute what one device computes; empty if it does.
        xla_options: XLA options with which a call compiles `update` (backends/xla_options.py).
        train, mesh, config: what the step was built from.
    """

    config: GPTConfig
    mesh: Mesh
    train: TrainConfig
    init: Jitted[[Array], State]
    update: Jitted[[State, Tokens], tuple[State, Metrics]]
    gradients: Jitted[[State, Tokens], tuple[Float[Array, ""], Weights]]
    apply: Jitted[[State, Weights], tuple[State, Metrics]]
    evaluation: Jitted[[Weights, Tokens], Float[Array, ""]]
    load: Jitted[[Weights, Tokens], Load]
    state: State
    grads: Weights
    batch: jax.ShapeDtypeStruct
    layer_slots: tuple[int, ...] | None = None
    inexact: str = ""
    xla_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __call__(self, state: State, batch: Tokens) -> tuple[State, Metrics]:
        """Train on one batch. The state is donated: use the returned one. Tokens on the host are placed first.

        Token ids of a batch that is already on the mesh are checked once per array, without waiting for devices
        (`CheckedBatches`), so an error may concern an earlier batch. `update` and `evaluation` check no ids.

        The call returns before the step has run. On virtual CPU devices at most `MOST_AHEAD` steps may be unfinished
        (backends/pace.py). The step is compiled with `xla_options`, which JAX does not allow inside another jitted
        function: call `update` there.

        Raises:
            ValueError: the state or the batch is not of this step, or the state was donated to an earlier step.
        """
        require_present(require_instance(state, State, "the state"), "the state")
        leaves, structure = jax.tree.flatten(state)
        if structure == self._flat_state[1]:  # otherwise `update` names what differs
            require_placed(leaves, self._flat_state[0], "the state")
        state, metrics = self._tuned_update(state, self._placed(batch))
        keep_pace(metrics)
        return state, metrics

    def evaluate(self, params: Weights, batch: Tokens) -> Float[Array, ""]:
        """The mean loss of a batch by a forward pass, in the step's microbatches. Tokens on the host are placed first.

        Raises:
            ValueError: weights or batch are not of this step, or the weights were donated to an earlier step.
        """
        return self.evaluation(params, self._placed(batch))

    def _placed(self, batch: Any) -> Tokens:
        """A batch on the mesh, with checked ids. One that is sharded as `place` shards it is not moved."""
        if isinstance(batch, Tracer):
            return batch
        if not isinstance(batch, jax.Array) or not batch.sharding.is_equivalent_to(self.batch.sharding, batch.ndim):
            return self.place(batch)
        self._checked_batches.require(batch)
        return batch

    @functools.cached_property
    def _flat_state(self) -> tuple[list[jax.ShapeDtypeStruct], Any]:
        return jax.tree.flatten(self.state)

    @functools.cached_property
    def _checked_batches(self) -> CheckedBatches:
        return CheckedBatches(self.config.vocab)

    @functools.cached_property
    def _tuned_update(self) -> Jitted[[State, Tokens], tuple[State, Metrics]]:
        """`update`, compiled with `xla_options`. JAX does not allow these inside another jitted function."""
        if not self.xla_options:
            return self.update
        state = jax.tree.map(lambda each: each.sharding, self.state)
        shardings, options = (state, NamedSharding(self.mesh, P())), dict(self.xla_options)
        update = self.update.__wrapped__  # pyright: ignore[reportAttributeAccessIssue] (of every jitted function)
        return jax.jit(update, out_shardings=shardings, donate_argnums=0, compiler_options=options)

    def place(self, tokens_BS: Any) -> Tokens:
        """Put host tokens [batch_size, sequence + 1], a NumPy array or anything that is indexed like one, on the mesh.

        Each device gets its own sequences. Only the sequences of this process's devices are read, also from a
        memory-mapped array.

        Raises:
            ValueError: the shape differs, they are not integers, or an id is outside the vocabulary.
        """
        lazy = hasattr(tokens_BS, "shape") and hasattr(tokens_BS, "__getitem__")
        tokens_BS = tokens_BS if lazy else as_array(tokens_BS)
        shape, sharding = self.batch.shape, self.batch.sharding
        if tokens_BS.shape != shape:
            raise ValueError(f"tokens of shape {tokens_BS.shape}; this step takes {shape}")
        vocab = self.config.vocab
        batch = jax.make_array_from_callback(shape, sharding, lambda part: as_tokens(tokens_BS[part], vocab))
        return self._checked_batches.add(batch)

    def xla_options_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given XLA options in the form that the devices' compiler reads, and `xla_options` for the others."""
        return {**self.xla_options, **as_read(self.mesh.devices.flat[0].platform, given)}

    def lower(self) -> jax.stages.Lowered:
        """Lower the step from shapes, without allocating anything. `.compile()` of the result compiles it."""
        return self._tuned_update.lower(self.state, self.batch)

    @property
    def tokens_per_step(self) -> int:
        """Tokens in a global batch."""
        return self.train.batch_size * self.config.sequence
