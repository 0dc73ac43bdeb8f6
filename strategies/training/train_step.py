"""The training step that all strategies share: differentiate, clip by the global norm, AdamW.

It is written once, runs inside `jax.shard_map` on each device's part of the weights and of the batch, and has no
communication of its own but that of the global norm: the rest comes with the `Spread`. Where the compiler is to
partition it (auto.py) it is the same, on all of the weights and all of the batch.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, PRNGKeyArray

from strategies.config import GPTConfig, Infeasible, TrainConfig, legal
from strategies.model.gpt import GPT, Weights, weight_dims
from strategies.model.loss import tokens_at_once
from strategies.step import Metrics, Optimizer, Spread, State, Step, Tokens

LossAndGrads = Callable[[Weights, Tokens], tuple[Array, Weights]]


def assemble(config: GPTConfig, mesh: Mesh, train: TrainConfig, spread: Spread) -> Step:
    """The step of a strategy, lowered and compiled by nothing yet.

    Raises:
        Infeasible: the batch cannot be cut into the mesh's batch axes and the microbatches, or `logits_bytes` are too
            few for one token.
    """
    rows = config.vocab_rows(spread.vocab_shards)
    _require_fit(mesh, train, spread, rows)

    def create(key: PRNGKeyArray | int) -> GPT:
        attention = _attention(mesh, train)
        how = {"rows": rows, "places": spread.places, "hooks": spread.hooks, "attention": attention}
        return GPT(config, train, nnx.Rngs(key), **how)

    graph, _ = nnx.split(nnx.eval_shape(lambda: create(0)), nnx.Param)
    specs = _specs(spread.spec, config)
    update_specs = _specs(spread.update_spec, config) if spread.update_spec else specs
    optimizer = spread.optimizer(adamw(train, update_specs, whole=spread.partitioned))

    def init(key: PRNGKeyArray) -> State:
        params = nnx.to_pure_dict(nnx.state(create(key), nnx.Param))
        return State(params, optimizer.init(params))

    def build(params: Weights) -> GPT:
        return nnx.merge(graph, params)

    def loss_and_grads(params: Weights, tokens_BS: Tokens) -> tuple[Array, Weights]:
        return spread.differentiate(build, params, tokens_BS, train.batch_size * config.sequence)

    def gradients(params: Weights, tokens_BS: Tokens) -> tuple[Array, Weights]:
        differentiate = accumulated(loss_and_grads, spread.microbatches)
        # float32 is float32: by default GPUs and TPUs multiply it in fewer bits (TF32, bfloat16 passes).
        with jax.default_matmul_precision("highest" if train.dtype == "float32" else "default"):
            return spread.reduce(*differentiate(spread.enter(params), tokens_BS))

    def apply(state: State, grads: Weights) -> tuple[State, Metrics]:
        own = spread.own(state.params)
        updates, kept, norm = optimizer.update(grads, state.optimizer, own)
        updated: Any = optax.apply_updates(own, updates)
        return State(spread.collect(updated), kept), {"grad_norm": norm}

    def update(state: State, tokens_BS: Tokens) -> tuple[State, Metrics]:
        value, grads = gradients(state.params, tokens_BS)
        state, metrics = apply(state, grads)
        return state, {"loss": value, **metrics}

    shapes = jax.eval_shape(init, jax.random.key(0))
    grads, grad_specs = optimizer.takes(shapes.params)
    state_specs, batch_spec = State(specs, optimizer.specs(shapes.optimizer)), P(spread.batch_axes or None)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), state_specs)
    batch_shape = (train.batch_size, config.sequence + 1)

    def placed(array: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    spread_out = partial(_spread_out, mesh, spread.partitioned)

    return Step(
        config=config,
        mesh=mesh,
        train=train,
        init=jax.jit(init, out_shardings=shardings),
        update=spread_out(update, (state_specs, batch_spec), (state_specs, P()), donate_argnums=(0,)),
        gradients=spread_out(gradients, (specs, batch_spec), (P(), grad_specs)),
        apply=spread_out(apply, (state_specs, grad_specs), (state_specs, P())),
        state=jax.tree.map(placed, shapes, state_specs),
        grads=jax.tree.map(placed, grads, grad_specs),
        batch=jax.ShapeDtypeStruct(batch_shape, jnp.int32, sharding=NamedSharding(mesh, batch_spec)),
        places=spread.places,
        inexact=spread.inexact,
    )


def adamw(train: TrainConfig, specs: Weights, *, whole: bool = False) -> Optimizer:
    """AdamW behind clipping, of gradients and moments that are split so; `whole` where the compiler splits them."""
    adamw = optax.adamw(
        train.learning_rate, train.beta1, train.beta2, eps=train.epsilon, weight_decay=train.weight_decay
    )

    def state_specs(state: Any) -> Any:
        return optax.tree_map_params(adamw, lambda _, spec: spec, state, specs, transform_non_params=lambda _: P())

    def update(grads: Weights, state: Any, weights: Weights) -> tuple[Weights, Any, Array]:
        norm = global_norm(grads, jax.tree.map(lambda _: P(), specs) if whole else specs)
        clip = 1 / jnp.maximum(norm / train.clip_norm, 1)
        updates: Any
        updates, state = adamw.update(jax.tree.map(lambda g: g * clip, grads), state, weights)
        return updates, state, norm

    return Optimizer(lambda weights: (weights, specs), adamw.init, state_specs, update)


def accumulated(loss_and_grads: LossAndGrads, microbatches: int) -> LossAndGrads:
    """The same, over parts of the batch one after another: the sums of their losses and gradients."""
    if microbatches == 1:
        return loss_and_grads

    def accumulate(params: Weights, tokens_BS: Tokens) -> tuple[Array, Weights]:
        def add(total: Any, tokens_bS: Tokens) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, loss_and_grads(params, tokens_bS)), None

        # Every so many sequences one: where the compiler splits the batch, each device has its part of each microbatch.
        tokens_MbS = tokens_BS.reshape(-1, microbatches, tokens_BS.shape[-1]).swapaxes(0, 1)
        shapes = jax.eval_shape(loss_and_grads, params, tokens_MbS[0])  # and over which axes they vary
        zeros = jax.tree.map(lambda like: jnp.zeros_like(like, jnp.float32), shapes)
        return lax.scan(add, zeros, tokens_MbS)[0]

    return accumulate


def global_norm(grads: Weights, specs: Weights) -> Float[Array, ""]:
    """The whole model's norm: squares are summed here, then over the axes that split each weight, then over weights."""
    squares: defaultdict[tuple[str, ...], list[Array]] = defaultdict(list)
    for grad, spec in zip(jax.tree.leaves(grads), jax.tree.leaves(specs), strict=True):
        axes = tuple(sorted(axis for axis in jax.tree.leaves(tuple(spec)) if axis))
        squares[axes].append(jnp.sum(jnp.square(grad)))
    return jnp.sqrt(sum(lax.psum(sum(parts), axes) if axes else sum(parts) for axes, parts in squares.items()))


def _spread_out(
    mesh: Mesh, partitioned: bool, function: Callable, inputs: Any, outputs: Any, donate_argnums: tuple[int, ...] = ()
) -> Any:
    """A function jitted over a mesh: on each device's part, or on the whole, which the compiler partitions."""
    if not partitioned:
        function = jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs)
    # Spelled as `init` spells them, or the second step would not be the first one's program.
    out_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), outputs)
    return jax.jit(function, out_shardings=out_shardings, donate_argnums=donate_argnums)


def _specs(spec: Callable[[Sequence[str]], P], config: GPTConfig) -> Weights:
    """The layout of each weight in its place."""
    return jax.tree.map(spec, weight_dims(config), is_leaf=lambda leaf: isinstance(leaf, tuple))


def _attention(mesh: Mesh, train: TrainConfig) -> str:
    kind = mesh.devices.flat[0].device_kind
    fused = "nvidia" in kind.lower() and train.dtype == "bfloat16"
    if train.attention == "cudnn" and not fused:
        raise Infeasible(f"attention=cudnn takes bfloat16 on NVIDIA GPUs, not {train.dtype} on {kind}; use auto or xla")
    return ("cudnn" if fused else "xla") if train.attention == "auto" else train.attention


def _require_fit(mesh: Mesh, train: TrainConfig, spread: Spread, rows: int) -> None:
    if train.logits_bytes is not None:
        tokens_at_once(1, rows // spread.vocab_shards, train.logits_bytes)
    shards = math.prod(mesh.shape[axis] for axis in spread.batch_axes)
    parts = max(spread.microbatches, train.microbatches)
    if train.batch_size % (shards * parts):
        axes = " x ".join([f"{axis}={mesh.shape[axis]}" for axis in spread.batch_axes] + [f"microbatches={parts}"])
        raise Infeasible(f"{axes} does not divide batch_size={train.batch_size}; {legal(train.batch_size, 'it')}")
