"""Compiler-partitioned: data, fsdp, tensor, expert, and products of two of them from sharding rules (GSPMD; Xu et al.
2021, sections 2 and 3).

The step is that of one device, in `jax.jit` without `jax.shard_map`. It sees whole arrays, and XLA partitions it. The
rules say which mesh axes split which dims:

    tensor      head_features, mlp and vocab, of weights and of what is computed with them; and between the matmuls the
                tokens of the residual stream, unless `sequence_parallel=False`
    fsdp        the first other dim that it divides, except layers: of weights as they are stored, not as they are used
    expert      experts, and their rows in buffers (model/experts.py) between dispatch and combine
    data, fsdp, expert  the batch

Where a hand-written strategy has a collective, sharding constraints say how the array is split before and after it.
Autodiff reverses the two constraints, so the gradient is split as well. Without constraints the compiler gathers the
token table to look up embeddings, or gathers the query, key and value weights that tensor splits, and holds whole
arrays that it could split.

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], in the compute dtype: each layer forward, and again backward
    x[B,T_tensor,D] -all_gather(tensor)-> x[B,T,D], as often as in tensor.py
    x[B,T,D] partial sums -all_reduce(tensor)-> x[B,T,D], as often as in tensor.py, which can reduce-scatter
    x[E,G_expert,C,D] -all_to_all(expert)-> x[E_expert,G,C,D] and back, as often as in expert.py; the weights of rows
        have an exchange of their own
    dW[D,F] -all_reduce(data or fsdp)-> dW[D,F], each weight, each microbatch, in the compute dtype; fsdp.py
        reduce-scatters. Gradients of experts are not summed over expert

With two axes, each has the collectives that name it. A device sends the bytes of data.py, fsdp.py, tensor.py and
expert.py with `dispatch="all_to_all"`, with these differences:

    An all-reduce sends twice as much as a reduce-scatter, which would suffice where each device keeps only its shard of
    the sum. XLA's TPU backend combines the all-reduce and the slice into a reduce-scatter; its CPU backend does not.
    The program cannot say that a sum over devices may be deferred. Gradients are summed for each microbatch (data.py:
    once a step), those of a tied table for each of its uses (data.py: once), and with `logits_bytes` those of the table
    for each chunk of tokens (data.py and fsdp.py: once). Nor can it say in which dtype to sum: `reduce_dtype` is no
    option here, and gradients of matrices are summed in the compute dtype.
    The probabilities of the router p[N,E] are gathered over the axes of the batch, in float32, each layer forward, and
    again backward where they are recomputed: XLA's TopK is one call that its partitioner does not split.
    The tensor axis gathers the gradient of the positions, and sums those of some biases after the gather of tokens
    (tensor.py: all-reduces).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies import data, expert, fsdp, tensor
from strategies.core.axis import Axis
from strategies.core.gradients import sum_whole_copies
from strategies.core.placement import Placement, size_of
from strategies.core.plan import Plan
from strategies.model.hooks import Hooks
from strategies.model.remat import GATHERED, KEPT
from strategies.model.weights import WeightSpec, project
from strategies.step import Implementation
from strategies.strategy import Strategy, ordering_hooks

BATCH = data.REPLICAS.name, fsdp.AXIS.name, expert.AXIS.name
AXES = (
    Axis("data", batch=True),
    Axis("fsdp", batch=True, shards=True, may_split_dim_twice=False),
    Axis("expert", batch=True, dims=expert.AXIS.dims, require=expert.require),
    Axis("tensor", dims=tensor.DIMS, options=("sequence_parallel",), require=tensor.require),
)
"""What the hand-written axes split. The compiler does the rest."""


def hooks(mesh: Mesh, placement: Placement, sequence_parallel: bool) -> Hooks:
    """Sharding constraints where hand-written strategies have collectives. The mesh has all axes of `AXES`."""

    def split(*axes: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*axes))

    def reshard(x: Array, before: NamedSharding, after: NamedSharding) -> Array:
        """Constrain x to one sharding, then to another. Autodiff reshards the gradient in reverse."""
        return lax.with_sharding_constraint(lax.with_sharding_constraint(x, before), after)

    tokens = "tensor" if sequence_parallel else None
    all_tokens, own_tokens = split(BATCH), split(BATCH, tokens)

    def gather(weight: Array, spec: WeightSpec, dtype: str) -> Array:
        used = split(*(placement.dims.get(dim) for dim in spec.dims))
        weight = lax.with_sharding_constraint(weight.astype(dtype), used)
        # The head's backward pass follows its forward pass at once, and the compiler would not merge two gathers.
        return checkpoint_name(weight, GATHERED) if "vocab" in spec.dims else weight

    def projected(x: Array) -> Array:
        return lax.with_sharding_constraint(x, split(BATCH, *[None] * (x.ndim - 2), "tensor"))

    def project_split(x_BTD: Array, qkv_DCA: Array) -> Array:
        """Like `project`, but A stays a separate dim of the matmul. Tensor splits A; merged with C it would be
        gathered.
        """
        qkv_NCA = jnp.tensordot(x_BTD.reshape(-1, x_BTD.shape[-1]), qkv_DCA, 1)
        return qkv_NCA.reshape(*x_BTD.shape[:-1], *qkv_DCA.shape[1:])

    all_experts, own_experts = split(None, BATCH), split("expert", tuple(axis for axis in BATCH if axis != "expert"))

    def dispatch(*rows: Array) -> Any:
        return tuple(checkpoint_name(reshard(x_EGCX, all_experts, own_experts), KEPT) for x_EGCX in rows)

    exchange = {"dispatch": dispatch, "combine": partial(reshard, before=own_experts, after=all_experts)}
    sum_partial = partial(reshard, before=all_tokens, after=own_tokens)
    return Hooks(
        gather=gather,
        **({"sum": sum_partial} if mesh.shape["tensor"] > 1 else {}),
        all_tokens=partial(reshard, before=own_tokens, after=all_tokens),
        own_tokens=lambda x_TD: lax.with_sharding_constraint(x_TD, split(tokens)),
        project=project_split if mesh.shape["tensor"] > 1 else project,
        projected=projected,
        **(exchange if mesh.shape["expert"] > 1 else {}),
        embed_sum=sum_partial,  # each device looks up all tokens in its rows
        vocab_sum=lambda x_N: lax.with_sharding_constraint(x_N, split(BATCH)),
        vocab_max=lambda x_N: lax.with_sharding_constraint(x_N, split(BATCH)),
        compiler_shards=(size_of(BATCH, mesh.shape), mesh.shape["tensor"]),
    )


def implement(plan: Plan, mesh: Mesh) -> Implementation:
    """The sharding constraints of the axes."""
    constraints = hooks(mesh, plan.placement, plan.train.sequence_parallel)
    return Implementation(
        hooks=replace(constraints, needs_loop=plan.needs_loop, **ordering_hooks(plan)),
        reduce=lambda loss, grads: (loss, sum_whole_copies(grads, plan)),
        prepare=lambda weights: weights,
        mode="auto",
    )


TWINS = {
    **{(name,): name for name in ("data", "fsdp", "tensor", "expert")},
    ("fsdp", "tensor"): "three_d",
    ("data", "expert"): "expert",
    ("fsdp", "expert"): "three_d",
}
"""Mesh axes that may be combined -> the hand-written strategy that does the same."""
AUTO = Strategy("auto", AXES, implement, twins=TWINS, usual_axes=("data", "fsdp", "tensor"), compiler_communicates=True)
