"""Explicit sharding: data, fsdp, expert, tensor, and pairs of them, in types (docs of JAX, "Explicit sharding").

The step is that of one device, as in auto.py, but the mesh axes are explicit: the type of each array says which axes
split its dims, and an operation whose result would be ambiguous is an error. Two tags in the types say what sharding
constraints cannot. The gradient of a `reduced` weight stays a partial sum on each device; an `unreduced` array is such
a sum. So gradients are accumulated over microbatches as partial sums, and summed over devices once:

    dW[D,F]{unreduced: data} -reshard(data)-> dW[D,F], each weight, once a step, in `reduce_dtype`

Layers stay a loop on all devices: partial sums that are stacked outside of a loop are summed twice (JAX 0.10 to 0.12).
XLA's CPU backend compiles a reshard from a partial sum to a split array to an all-reduce and a slice, not to a
reduce-scatter. So the collectives of layers, attention, mixtures of experts and the look-up of tokens along tensor
stand in small `jax.shard_map`s; all else is written as for one device:

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F]{reduced: fsdp}, and its transpose, a reduce-scatter, as in fsdp.py
    x[B,T_tensor,D] -all_gather(tensor)-> x[B,T,D]{reduced: tensor}, and its transpose, as in tensor.py
    x[B,T,D]{unreduced: tensor} -reduce_scatter(tensor)-> x[B,T_tensor,D], and its transpose, as in tensor.py
    tokens, or rows of experts, -all_to_all or all_gather(expert)-> devices with their experts; back as in expert.py

A device sends the bytes of data.py, fsdp.py, tensor.py and expert.py by their formulas, with two differences:

    With sequence parallelism the gradient of the positions is gathered along tensor, each microbatch (tensor.py:
    all-reduced, once a step), because that is the transpose of the reshard of positions to each device's tokens.
    A weight that tensor splits along its only dim, such as a bias, is not split again by fsdp: `gather` gathers along
    a dim that no other axis splits.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies import auto, expert, fsdp, tensor
from strategies.core.axis import Axis
from strategies.core.explicit_experts import forward_of_devices, mixture_hooks, varying
from strategies.core.gradients import partial_axes
from strategies.core.matrices import resolve_gather
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, traffic
from strategies.infeasible import Infeasible, WrongSize, divisors
from strategies.model.attention import QKV, Attended, Reach, causal_attention
from strategies.model.gpt import GPT, map_weights
from strategies.model.hooks import Hooks
from strategies.model.layers import layers_at_once
from strategies.model.weights import (
    Weights,
    WeightSpec,
    is_partial,
    partial_sum,
    resharded,
    scaled,
    spec_of,
    sum_partial,
)
from strategies.model.weights import look_up as look_up_rows
from strategies.step import Divisor, Implementation, LossTerms, Tokens, forward_to_train
from strategies.strategy import Strategy, compose, vocabulary_traffic


def require(plan: Plan) -> None:
    """Refuse what has no rule here: some parts of models, and partly unrolled loops."""
    expert.require(plan)
    if plan.config.block == "gpt_oss":
        raise Infeasible("explicit has no rule for the attention sinks of block=gpt_oss; use auto or fsdp")
    if plan.config.mtp:
        problem = f"explicit has no rule for the MTP block of mtp_loss={plan.config.mtp_loss}"
        raise Infeasible(f"{problem}; use auto or fsdp")
    if plan.train.optimizer == "muon" and plan.size("expert") > 1:
        raise Infeasible("explicit has no rule for optimizer=muon where expert splits matrices; use expert or three_d")
    for stack in plan.stacks:
        if 1 < layers_at_once(stack.layers, plan.train.layers_in_loop) < stack.layers:
            problem = f"explicit has no rule for unroll={plan.train.unroll} of {stack.layers} layers"
            raise Infeasible(f"{problem}; use unroll=1 or unroll={stack.layers}")


def require_tensor(plan: Plan) -> None:
    """Refuse what a tensor axis cannot split, and norms over all heads."""
    require(plan)
    if plan.config.experts:
        raise Infeasible(f"explicit does not split experts={plan.config.experts} over tensor; use auto or three_d")
    tensor.require(plan)
    keys = plan.config.key_heads or plan.config.heads
    if keys % plan.tensors:
        fitting = [size for size in divisors(plan.config.heads) if keys % size == 0]
        raise WrongSize(f"explicit does not replicate key_heads={keys} over tensor={plan.tensors}", "tensor", fitting)
    if plan.config.latent_rank:
        problem = f"explicit has no rule for latents of latent_rank={plan.config.latent_rank} on a tensor axis"
        raise Infeasible(f"{problem}; use auto, tensor or three_d")
    if plan.block.parts["attention"].means:
        problem = f"explicit has no rule for norms over all heads of block={plan.config.block}"
        raise Infeasible(f"{problem}; use auto or tensor")


def mark_reduced(weights: Weights, plan: Plan) -> Weights:
    """Weights whose gradients stay partial sums on each device until the end of the step."""

    def one(weight: Array, spec: WeightSpec) -> Array:
        return resharded(weight, reduced=(*plan.placed(spec.dims).summed, *partial_axes(plan, spec)))

    return map_weights(one, plan.config, weights)


def sum_partial_gradients(loss: LossTerms, grads: Weights, plan: Plan) -> tuple[LossTerms, Weights]:
    """Sum loss and gradients over devices, as `gradients.sum_remaining` does: axis by axis, then over replicas."""

    def one(grad: Array, spec: WeightSpec) -> Array:
        dtype = spec.summed_dtype(plan.train.reduce_dtype)
        for axis in partial_axes(plan, spec):
            grad = resharded(grad.astype(dtype), unreduced=spec_of(grad).unreduced - {axis}).astype("float32")
        return sum_partial(grad.astype(dtype)).astype("float32") if is_partial(grad) else grad

    return sum_partial(loss), map_weights(one, plan.config, grads)


def differentiate(
    build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, divisor: Divisor
) -> tuple[LossTerms, Weights]:
    """Loss and gradients by autodiff. The returned loss is a partial sum on each device, like the gradients."""

    def objective(weights: Weights) -> tuple[Array, LossTerms]:
        losses_N, extras = forward_to_train(build(weights), tokens_BS)
        losses_N = losses_N / divisor
        extras = {name: scaled(total, 1 / divisor) for name, total in extras.items()}
        return sum(map(sum_partial, extras.values()), losses_N.sum()), {"loss": partial_sum(losses_N), **extras}

    (_, terms), grads = jax.value_and_grad(objective, has_aux=True)(weights)
    return terms, grads


def gather(plan: Plan, weight: Array, spec: WeightSpec, dtype: str) -> Array:
    """`Hooks.gather`: all-gather a weight that fsdp splits, in `dtype`; gradients are scattered in `reduce_dtype`."""
    shard, stored = plan.placed(spec.dims).stored_shard, spec_of(weight)
    if shard is None:
        return weight.astype(dtype)
    whole = [None if i == shard.dim else axes for i, axes in enumerate(stored.partitions)]
    used = P(*whole, reduced=stored.reduced | {*shard.axes})
    partial_sums = P(*whole, unreduced=stored.reduced | {*shard.axes})
    kept = P(*stored.partitions, unreduced=stored.reduced)
    along: Any = {"axis_name": shard.axes, "tiled": True}

    def gathered(part: Array) -> Array:
        gather = partial(lax.all_gather, axis=shard.dim, to="reduced", **along)
        return jax.shard_map(gather, in_specs=stored, out_specs=used)(part.astype(dtype))

    def scattered(_: None, grad: Array) -> tuple[Array]:
        scatter = partial(lax.psum_scatter, scatter_dimension=shard.dim, **along)
        grad = grad.astype(spec.summed_dtype(plan.train.reduce_dtype))
        return (jax.shard_map(scatter, in_specs=partial_sums, out_specs=kept)(grad).astype(weight.dtype),)

    function = jax.custom_vjp(gathered)
    function.defvjp(lambda part: (gathered(part), None), scattered)
    return function(weight)


def hooks(plan: Plan, mesh: Any) -> Hooks:
    """Collectives of layers, and shardings where operations leave them open."""
    batch = plan.over(plan.placement.batch) or None

    def look_up(table_VD: Array, row_BT: Array) -> Array:
        wide_VD = table_VD.astype("float32")  # as in weights.look_up
        return wide_VD.at[row_BT].get(out_sharding=P(batch)).astype(table_VD.dtype)

    def project(x_BTD: Array, w_DCA: Array) -> Array:
        """Without a reshape of the weight: JAX 0.10 has no rule for that of a reduced array."""
        return jnp.tensordot(x_BTD, w_DCA, 1)

    def attend(qkv: Attended, kernel: str, reach: Reach | None) -> Array:
        """Each device's sequences and heads apart, so that any kernel runs."""
        heads = plan.over(["tensor"]) or None
        attention = partial(causal_attention, kind=kernel, reach=reach)
        split = (
            replace(qkv, qkv_BTCE=P(batch, None, None, heads)) if isinstance(qkv, QKV) else jax.tree.map(spec_of, qkv)
        )
        return jax.shard_map(attention, in_specs=(split,), out_specs=P(batch, None, heads))(qkv)

    return Hooks(
        gather=partial(gather, plan),
        project=project,
        attend=attend,
        needs_loop=plan.needs_loop,
        compiler_shards=(plan.size(*plan.placement.batch), plan.tensors),
        **(tensor_hooks(plan, batch) if plan.tensors > 1 else {"look_up": look_up}),
        **(mixture_hooks(compose(plan, mesh).hooks, batch or ()) if plan.config.experts else {}),
    )


def tensor_hooks(plan: Plan, batch: Any) -> Mapping[str, Any]:
    """Hooks of an axis that splits features and, between matmuls, tokens."""
    own = P(batch, "tensor") if plan.sequence_parallel else P(batch)

    def total(x_BTD: Array) -> Array:
        if not plan.sequence_parallel:
            return jax.reshard(x_BTD, own)
        scatter = partial(lax.psum_scatter, axis_name="tensor", scatter_dimension=1, tiled=True)
        return jax.shard_map(scatter, in_specs=spec_of(x_BTD), out_specs=own)(x_BTD)

    def all_tokens(x_BTD: Array) -> Array:
        if not plan.sequence_parallel:
            return resharded(x_BTD, reduced=("tensor",))
        gather = partial(lax.all_gather, axis_name="tensor", axis=1, tiled=True, to="reduced")
        return jax.shard_map(gather, in_specs=own, out_specs=P(batch, reduced=frozenset({"tensor"})))(x_BTD)

    def own_tokens(x_TD: Array) -> Array:
        return jax.reshard(x_TD, P("tensor", reduced=spec_of(x_TD).reduced)) if plan.sequence_parallel else x_TD

    def look_up(table_VD: Array, row_BT: Array) -> Array:
        table = spec_of(table_VD)

        def local(table_VD: Array, row_BT: Array) -> Array:
            """Each device looks up tokens in its rows.

            By hand, because the gradient of `.at[].get` of a split and reduced table is silently wrong where
            `out_sharding` splits the tokens (JAX 0.10 to 0.12).
            """
            found_BTD = look_up_rows(varying(table_VD), row_BT - len(table_VD) * lax.axis_index("tensor"))
            return lax.pcast(found_BTD, "tensor", to="unreduced")

        found = P(batch, unreduced=frozenset({"tensor"}))
        return jax.shard_map(local, in_specs=(table, P(batch)), out_specs=found)(table_VD, row_BT)

    return {"sum": total, "embed_sum": total, "all_tokens": all_tokens, "own_tokens": own_tokens, "look_up": look_up}


def has_partial_gradient(plan: Plan, spec: WeightSpec) -> bool:
    """Whether each device has only a part of the gradient of a weight that `tensor` does not split.

    Not of positions: a reshard gives each device those of its own tokens, so the gradient is gathered.
    """
    return tensor.has_partial_gradient(plan, spec) and "sequence" not in spec.dims


def positions(plan: Plan) -> Iterator[Traffic]:
    """Gathers of the gradient of the positions, by each microbatch."""
    weight = plan.weights.get("embedding.position_TD")
    if plan.sequence_parallel and weight:
        elements = plan.train.microbatches * plan.config.sequence * plan.config.embed // plan.tensors
        axes, dtype = plan.axes_of("head_features"), plan.dtype(weight)
        term = partial(traffic, plan, "positions", "all_gather", array="gradients", when="backward")
        yield from term(axes, elements, dtype=dtype)


def implement(plan: Plan, mesh: Any) -> Implementation:
    """The functions of all axes."""
    return Implementation(
        hooks=hooks(plan, mesh),
        differentiate=differentiate,
        forward=forward_of_devices,
        prepare=partial(mark_reduced, plan=plan),
        reduce=partial(sum_partial_gradients, plan=plan),
        mode="explicit",
    )


AXES = (
    Axis("data", batch=True, needs_loop=True, options=("reduce_dtype",), require=require),
    Axis(
        "fsdp",
        batch=True,
        shards=True,
        may_split_dim_twice=False,
        options=("reduce_dtype", "matrices"),
        resolve=resolve_gather,
        require=require,
        traffic=(fsdp.gathers,),
    ),
    Axis(
        "expert",
        batch=True,
        dims=expert.AXIS.dims,
        options=("reduce_dtype", "dispatch"),
        resolve=lambda plan: {"dispatch": expert.resolve(plan)["dispatch"]},
        require=require,
        implement=expert.implement,
        traffic=(expert.exchanges,),
    ),
    Axis(
        "tensor",
        dims=tensor.DIMS,
        options=("sequence_parallel", "reduce_dtype", "matrices"),
        resolve=resolve_gather,
        require=require_tensor,
        partial_gradient=has_partial_gradient,
        traffic=(tensor.layers, vocabulary_traffic, positions),
    ),
)
TWINS = {**auto.TWINS, ("data", "tensor"): "three_d", ("data", "fsdp"): "hsdp"}
"""Mesh axes that may be combined -> the hand-written strategy that does the same."""
EXPLICIT = Strategy("explicit", AXES, implement, twins=TWINS, by_default=False)
