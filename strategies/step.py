"""The interface that every strategy implements.

A strategy is a value, `Strategy`. Its `build` checks that model, mesh and batch fit, says all that it decides in a
`Layout` and an `Implementation`, and hands them to `assemble` (in train_step.py), which writes the training step around
them.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import MeshSpec, factorisations
from strategies.model.gpt import GPT
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.weights import Weights
from strategies.pace import keep_pace
from strategies.sharding.layout import Layout, size_of

Tokens = Int[Array, "B S"]
"""Sequences of S = T + 1 tokens: all but the last are inputs, all but the first are targets."""
Metrics = dict[str, Float[Array, ""]]


class State(NamedTuple):
    """What a step takes and gives back, sharded from birth."""

    params: Weights
    optimizer: Any
    """AdamW's moments and count, as optax keeps them; and whatever else the optimizer keeps of the steps before."""


def forward(model: GPT, tokens_BS: Tokens) -> Float[Array, " N"]:
    """The loss of each token: the whole model, one part after another."""
    return model.losses(model.run(model.embed(tokens_BS[:, :-1])), tokens_BS[:, 1:])


Differentiate = Callable[[Callable[[Weights], GPT], Weights, Tokens, int], tuple[Array, Weights]]
"""How to make a model of weights, the weights, this device's sequences, and the tokens of the global batch -> this
device's share of the mean loss, and its gradients."""


def autodiff(
    build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, token_count: int
) -> tuple[Array, Weights]:
    """A `Differentiate`: loss and gradients by autodiff of the forward pass."""
    return jax.value_and_grad(lambda weights: forward(build(weights), tokens_BS).sum() / token_count)(weights)


class Optimizer(NamedTuple):
    """How gradients change the weights.

    Attributes:
        takes: shapes of the weights -> shapes of the gradients that `update` takes, and the mesh axes that split them.
        init: weights -> its state, before the first step.
        specs: that state -> the mesh axes that split it.
        update: inside `jax.shard_map`, (gradients, state, weights) -> (what to add to the weights, state, global norm).
    """

    takes: Callable[[Weights], tuple[Weights, Weights]]
    init: Callable[[Weights], Any]
    specs: Callable[[Any], Any]
    update: Callable[[Weights, Any, Weights], tuple[Weights, Any, Array]]


@dataclass(frozen=True)
class Implementation:
    """How a strategy carries out its layout; by default nothing needs to be done.

    Its functions run inside `jax.shard_map`, unless the compiler partitions the step.

    Attributes:
        hooks: what to do inside the model.
        differentiate: this device's part of the batch, or of a microbatch -> its share of loss and gradients.
        schedules_microbatches: whether `differentiate` takes all microbatches and orders them itself, as a pipeline
            does. Else their gradients are accumulated, one microbatch after another.
        layer_slots: which layer is in each slot of the stacked blocks, -1 for none; None where they are in order.
        prepare_params: weights as the state holds them -> as gradients are taken of them.
        reduce: this device's share of loss and gradients, after all microbatches -> their sums over axes that split
            weights.
        sum_replicas: such sums -> sums over `Layout.replicas`; None is an all-reduce in `reduce_dtype`. Not called
            where there are no replicas.
        optimizer: AdamW behind clipping -> what is to take its place.
        inexact: why the step computes something else than one device by design; nothing where it does not.
        compiler_partitioned: the compiler splits the work: the functions see whole arrays, in no `jax.shard_map`.
    """

    hooks: Hooks = ONE_DEVICE
    differentiate: Differentiate = autodiff
    schedules_microbatches: bool = False
    layer_slots: tuple[int, ...] | None = None
    prepare_params: Callable[[Weights], Weights] = lambda weights: weights
    reduce: Callable[[Array, Weights], tuple[Array, Weights]] = lambda loss, grads: (loss, grads)
    sum_replicas: Callable[[Array, Weights], tuple[Array, Weights]] | None = None
    optimizer: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer
    inexact: str = ""
    compiler_partitioned: bool = False


@dataclass(frozen=True)
class Step:
    """One training step on one mesh: `state, metrics = step(state, batch)`.

    Attributes:
        init: key -> `State`, created sharded: no device ever holds a full-size array that its strategy splits.
        update: the jitted step, (state, batch) -> (state, {"loss", "grad_norm"}); it donates the state.
        gradients: the first half of it, jitted: (params, batch) -> (loss, gradients before clipping).
        apply: the other half, jitted: (state, gradients) -> (state, {"grad_norm"}). Neither donates anything.
        state: shapes, dtypes and shardings of the state; `grads`, between the halves, and `batch` likewise.
        layer_slots: as in `Implementation`.
        inexact: why it computes something else than one device by design; nothing where it does not.
        train, mesh, config: what the step was built from.
    """

    config: GPTConfig
    mesh: Mesh
    train: TrainConfig
    init: Any
    update: Any
    gradients: Any
    apply: Any
    state: State
    grads: Weights
    batch: jax.ShapeDtypeStruct
    layer_slots: tuple[int, ...] | None = None
    inexact: str = ""

    def __call__(self, state: State, batch: Tokens) -> tuple[State, Metrics]:
        """Train on one batch. The state that is given is donated: use the one that comes back.

        It returns before the step has run; on virtual CPU devices a loop is held to `MOST_AHEAD` steps (pace.py).
        """
        state, metrics = self.update(state, batch)
        keep_pace(metrics)
        return state, metrics

    def place(self, tokens_BS: Any) -> Tokens:
        """Put host tokens, anything like a numpy array, on the mesh: each device its own sequences.

        Only what the devices of this process take is looked at: what reads its parts as they are asked for, from a
        file, reads no more.

        Raises:
            ValueError: another shape than [batch_size, sequence + 1], no integers, or ids beyond the vocabulary.
        """
        tokens_BS = tokens_BS if hasattr(tokens_BS, "shape") else np.asarray(tokens_BS)
        shape, sharding = self.batch.shape, self.batch.sharding
        if tokens_BS.shape != shape:
            raise ValueError(f"tokens of shape {tokens_BS.shape}; this step takes {shape}")
        vocab = self.config.vocab
        return jax.make_array_from_callback(shape, sharding, lambda part: as_tokens(tokens_BS[part], vocab))

    def lower(self) -> jax.stages.Lowered:
        """The step lowered from shapes alone, nothing allocated; `.compile()` it to ask the compiler."""
        return self.update.lower(self.state, self.batch)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.train.batch_size * self.config.sequence


def as_tokens(part: Any, vocab: int) -> np.ndarray:
    """Token ids as int32.

    Raises:
        ValueError: they are no integers, or not all of them are in the vocabulary.
    """
    ids = np.asarray(part)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"tokens of dtype {ids.dtype}; give integers")
    low, high = (ids.min(), ids.max()) if ids.size else (0, 0)
    if low < 0 or high >= vocab:
        raise ValueError(f"token ids from {low} to {high}; with vocab={vocab} they can be 0 to {vocab - 1}")
    return ids.astype(np.int32, copy=False)


@dataclass(frozen=True)
class Strategy:
    """A way to spread the GPT: a name, the mesh axes it uses, and how to build its step.

    `build(config, mesh, train, devices=None)` takes a `MeshSpec` or its text, and the first of `jax.devices()` unless
    told otherwise. It raises `Infeasible`, before anything is compiled, where model, mesh and batch do not fit.

    Attributes:
        options: fields of `TrainConfig` that make another step of this strategy, besides those that do of every one.
        layout: which axes split what; from it costs/ says what a step sends and holds, unless it has `twins`.
        microbatches: the default number of microbatches, without pipeline stages.
        usual_axes: axes of the meshes that are measured when none is asked for; None for all.
        traffic: what its own hooks send, besides what follows from the layout: functions as those of `TERMS` in
            costs/traffic.py.
        twins: of a strategy that the compiler partitions, the axes that it offers together, and the strategy that does
            by hand what it does on these.
    """

    name: str
    axes: tuple[str, ...]
    build: Callable[..., Step]
    options: tuple[str, ...] = ()
    layout: Layout | None = None
    most_devices: float = math.inf
    microbatches: int = 1
    usual_axes: tuple[str, ...] | None = None
    traffic: tuple[Callable[..., Iterator[Any]], ...] = ()
    twins: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Have `build` take the text of a mesh, too; refuse a layout of other axes."""
        if self.layout and (strange := sorted(self.layout.axes - {*self.axes})):
            raise ValueError(f"the layout of {self.name} splits over {strange[0]}; its axes are {', '.join(self.axes)}")
        object.__setattr__(self, "build", of_texts(self.build))

    def meshes(self, devices: int) -> list[MeshSpec]:
        """Its meshes of exactly that many devices."""
        meshes = factorisations(self.axes, devices) if devices <= self.most_devices else ()
        return [mesh for mesh in meshes if not self.twins or tuple(mesh.sizes) in self.twins]

    def batch_shards(self, mesh: MeshSpec) -> int:
        """Into how many parts the batch is split on a mesh; one, if the strategy states no layout."""
        return size_of(self.layout.batch, mesh.sizes) if self.layout else 1

    def default_microbatches(self, mesh: MeshSpec, batch_size: int) -> int:
        """Two for each pipeline stage, for a smaller bubble; without stages `microbatches`; fewer for a small batch."""
        stages = mesh.sizes.get("pipeline", 1)
        return math.gcd(batch_size // self.batch_shards(mesh), 2 * stages if stages > 1 else self.microbatches)

    def is_usual(self, mesh: MeshSpec) -> bool:
        """Whether it is one of the meshes that stand for all."""
        return self.usual_axes is None or set(mesh.sizes) <= set(self.usual_axes)


def of_texts(build: Callable[..., Step]) -> Callable[..., Step]:
    """The same `build`, which takes the text of a mesh, too, and says what to pass for a model that is a text."""

    @functools.wraps(build)
    def built(config: GPTConfig, mesh: MeshSpec | str, *others: Any, **named: Any) -> Step:
        if isinstance(config, str):
            raise Infeasible(f"the model is the text {config!r}; give a GPTConfig, as PRESETS[{config!r}]")
        return build(config, MeshSpec.of(mesh), *others, **named)

    return built
