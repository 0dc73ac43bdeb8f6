"""The training step that all strategies share: differentiate, clip by the global norm, AdamW.

It is written once, runs inside `jax.shard_map` on each device's part of the weights and of the batch, and has no
communication of its own but what the layout asks for: the sums of gradients over devices that hold the same weights,
the global norm, and the gather of weights that were updated in parts. The rest comes with the `Implementation`. Where
the compiler is to partition it (auto.py) it is the same, on all of the weights and all of the batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PRNGKeyArray

from strategies.config import GPTConfig, Infeasible, TrainConfig, legal
from strategies.mesh import mark_varying
from strategies.model.gpt import GPT, Weights, weight_dims
from strategies.model.loss import tokens_at_once
from strategies.sharding.layout import Layout, size_of
from strategies.step import Implementation, Metrics, Optimizer, State, Step, Tokens
from strategies.training.gradients import accumulated, all_reduce, global_norm


def assemble(config: GPTConfig, mesh: Mesh, train: TrainConfig, layout: Layout, how: Implementation) -> Step:
    """The step of a strategy, not yet lowered or compiled.

    Raises:
        Infeasible: the batch cannot be cut into the mesh's batch axes and the microbatches, or `logits_bytes` are too
            few for one token.
    """
    rows = config.vocab_rows(layout.parts(mesh.shape).get("vocab", 1))
    _require_fit(mesh, train, layout, rows)

    def create(key: PRNGKeyArray | int) -> GPT:
        attention = _attention(mesh, train)
        options = {"rows": rows, "layer_slots": how.layer_slots, "hooks": how.hooks, "attention": attention}
        return GPT(config, train, nnx.Rngs(key), **options)

    graph, _ = nnx.split(nnx.eval_shape(lambda: create(0)), nnx.Param)
    specs = _specs(layout.spec(config, mesh.shape), config)
    update_specs = _specs(layout.update_spec(config, mesh.shape), config)
    optimizer = how.optimizer(adamw(train, update_specs, whole=how.compiler_partitioned))
    replicas = () if how.compiler_partitioned else layout.replicas
    sum_replicas = how.sum_replicas or partial(all_reduce, axes=replicas, dtype=train.reduce_dtype)
    updates = ShardedUpdate.of(layout, config, mesh, train)
    apart = (*replicas, layout.updates) if layout.updates else replicas

    def init(key: PRNGKeyArray) -> State:
        params = nnx.to_pure_dict(nnx.state(create(key), nnx.Param))
        return State(params, optimizer.init(params))

    def build(params: Weights) -> GPT:
        return nnx.merge(graph, params)

    def loss_and_grads(params: Weights, tokens_BS: Tokens) -> tuple[Array, Weights]:
        loss, grads = how.differentiate(build, params, tokens_BS, train.batch_size * config.sequence)
        return loss, updates.scatter(grads) if updates and layout.scatters_each else grads

    def gradients(params: Weights, tokens_BS: Tokens) -> tuple[Array, Weights]:
        differentiate = accumulated(loss_and_grads, 1 if how.schedules_microbatches else train.microbatches)
        # float32 is float32: by default GPUs and TPUs multiply it in fewer bits (TF32, bfloat16 passes).
        with jax.default_matmul_precision("highest" if train.dtype == "float32" else "default"):
            prepared = how.prepare_params(mark_varying(params, apart) if apart else params)
            loss, grads = how.reduce(*differentiate(prepared, tokens_BS))
            if updates:
                loss = lax.psum(loss, layout.updates)
                grads = grads if layout.scatters_each else updates.scatter(grads)
            return sum_replicas(loss, grads) if replicas else (loss, grads)

    def apply(state: State, grads: Weights) -> tuple[State, Metrics]:
        params = updates.shard_params(state.params) if updates else state.params
        changes, kept, norm = optimizer.update(grads, state.optimizer, params)
        updated: Any = optax.apply_updates(params, changes)
        return State(updates.unshard_params(updated) if updates else updated, kept), {"grad_norm": norm}

    def update(state: State, tokens_BS: Tokens) -> tuple[State, Metrics]:
        value, grads = gradients(state.params, tokens_BS)
        state, metrics = apply(state, grads)
        return state, {"loss": value, **metrics}

    shapes = jax.eval_shape(init, jax.random.key(0))
    grads, grad_specs = optimizer.takes(shapes.params)
    state_specs, batch_spec = State(specs, optimizer.specs(shapes.optimizer)), P(layout.batch or None)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), state_specs)
    batch_shape = (train.batch_size, config.sequence + 1)

    def placed(array: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    spread_out = partial(_spread_out, mesh, how.compiler_partitioned)

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
        layer_slots=how.layer_slots,
        inexact=how.inexact,
    )


class ShardedUpdate(NamedTuple):
    """What `Layout.updates` asks for: each device applies its part of the gradients (ZeRO stages 1 and 2).

    Attributes:
        scatter: gradients of each device -> this device's part of their sum.
        shard_params: weights as the state holds them -> the parts that this device updates.
        unshard_params: such parts -> weights as the state holds them.
    """

    scatter: Callable[[Weights], Weights]
    shard_params: Callable[[Weights], Weights]
    unshard_params: Callable[[Weights], Weights]

    @classmethod
    def of(cls, layout: Layout, config: GPTConfig, mesh: Mesh, train: TrainConfig) -> "ShardedUpdate | None":
        """None where every device updates all that it holds."""
        if not layout.updates:
            return None
        shards = layout.shards_of(layout.updates, config, mesh.shape)
        each = (
            partial(shards.scatter, dtype=train.reduce_dtype),
            shards.local_part,
            partial(shards.gather, to="invarying"),
        )
        return cls(*(partial(shards.map_weights, function) for function in each))


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
    """The `PartitionSpec` of every weight, in the tree of the model."""
    return jax.tree.map(spec, weight_dims(config), is_leaf=lambda leaf: isinstance(leaf, tuple))


def _attention(mesh: Mesh, train: TrainConfig) -> str:
    kind = mesh.devices.flat[0].device_kind
    fused = "nvidia" in kind.lower() and train.dtype == "bfloat16"
    if train.attention == "cudnn" and not fused:
        raise Infeasible(f"attention=cudnn takes bfloat16 on NVIDIA GPUs, not {train.dtype} on {kind}; use auto or xla")
    return ("cudnn" if fused else "xla") if train.attention == "auto" else train.attention


def _require_fit(mesh: Mesh, train: TrainConfig, layout: Layout, rows: int) -> None:
    if train.logits_bytes is not None:
        tokens_at_once(1, rows // layout.parts(mesh.shape).get("vocab", 1), train.logits_bytes)
    if train.batch_size % (size_of(layout.batch, mesh.shape) * train.microbatches):
        sizes = [f"{axis}={mesh.shape[axis]}" for axis in layout.batch]
        axes = " x ".join([*sizes, f"microbatches={train.microbatches}"])
        raise Infeasible(f"{axes} does not divide batch_size={train.batch_size}; {legal(train.batch_size, 'it')}")
