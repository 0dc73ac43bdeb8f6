"""Left to the compiler: data, fsdp, tensor, and fsdp x tensor from rules (GSPMD; Xu et al. 2021, sections 2 and 3).

The step is that of one device, in `jax.jit` and no `jax.shard_map`: it sees whole arrays, and XLA makes of it what each
device does. It is told which mesh axes split which dims:

    head_features, mlp, vocab  of weights, and what is made with them: tensor
    the first dim besides that fsdp divides, but layers: of weights as they are stored, not as they are used
    batch               data, fsdp
    tokens              of the residual stream, between the matmuls: tensor; with `sequence_parallel=False` nothing

and wherever the strategies by hand have a collective it is told how the array is split before and behind. Autodiff
has the two in reverse, so that the gradient is split as well. Left alone the compiler gathers the table to look up
embeddings, or the weights of queries, keys and values that the tensor axis splits, and holds what it could split.

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], in the compute dtype: each layer forward, and again backward
    x[B,T_tensor,D] -all_gather(tensor)-> x[B,T,D], as often as in tensor.py
    x[B,T,D] partial sums -all_reduce(tensor)-> x[B,T,D], as often as in tensor.py, which can scatter
    dW[D,F] -all_reduce(data or fsdp)-> dW[D,F], each weight, each microbatch, in the compute dtype; fsdp.py scatters

With fsdp x tensor each axis has its own of these. A device sends the bytes of data.py, fsdp.py and tensor.py, but:

    An all-reduce is twice the reduce-scatter that would do, for just a part of the sum is kept. XLA's backend for TPUs
    makes a reduce-scatter of the two, that for CPUs does not.
    Nothing in the program can say that a sum over devices may wait. Gradients are summed in each microbatch (data.py:
    once a step), those of a tied table for each of its uses (data.py: once), and with `logits_bytes` those of the table
    for each chunk of tokens (data.py and fsdp.py: once). Nor can it say in which dtype: `reduce_dtype` is no option
    here, and gradients of matrices are summed in the compute dtype.
    The tensor axis gathers the gradient of the positions, and sums those of some biases where it has all tokens
    (tensor.py: all-reduces).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies import data, fsdp, tensor
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.model.attention_kernels import causal_attention, project
from strategies.model.hooks import Hooks
from strategies.model.remat import GATHERED
from strategies.sharding.layout import Layout, Spec, size_of
from strategies.step import Implementation, Step, Strategy
from strategies.training.train_step import assemble

BATCH = (*data.AXES, *fsdp.AXES)
AXES = (*BATCH, *tensor.AXES)
LAYOUT = Layout(batch=BATCH, dims=tensor.LAYOUT.dims, shards=fsdp.AXES, cuts_again=False)


def hooks(mesh: Mesh, used: Spec, sequence_parallel: bool) -> Hooks:
    """Where the strategies by hand communicate: how arrays are split before and behind; `used` is how weights are."""

    def split(*axes: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*axes))

    def moved(x: Array, here: NamedSharding, there: NamedSharding) -> Array:
        """Split another way; its gradient is moved back."""
        return lax.with_sharding_constraint(lax.with_sharding_constraint(x, here), there)

    tokens = "tensor" if sequence_parallel else None
    all_tokens, own_tokens = split(BATCH), split(BATCH, tokens)

    def gather(weight: Array, dims: Sequence[str], dtype: str) -> Array:
        weight = lax.with_sharding_constraint(weight.astype(dtype), split(*used(dims)))
        # The head goes back where it went forward, and of two gathers the compiler would not make one.
        return checkpoint_name(weight, GATHERED) if "vocab" in dims else weight

    def attend(qkv_BTCA: Array, head_dim: int, kind: str) -> Array:
        qkv_BTCA = lax.with_sharding_constraint(qkv_BTCA, split(BATCH, None, None, "tensor"))
        return causal_attention(qkv_BTCA, head_dim, kind)

    def project_split(x_BTD: Array, qkv_DCA: Array) -> Array:
        """As `project`, but of a matmul in which A, which is split, stays a dim: merged with C it would be gathered."""
        qkv_NCA = jnp.tensordot(x_BTD.reshape(-1, x_BTD.shape[-1]), qkv_DCA, 1)
        return qkv_NCA.reshape(*x_BTD.shape[:-1], *qkv_DCA.shape[1:])

    sum_partial = partial(moved, here=all_tokens, there=own_tokens)
    return Hooks(
        gather=gather,
        sum=sum_partial,
        all_tokens=partial(moved, here=own_tokens, there=all_tokens),
        own_tokens=lambda x_TD: lax.with_sharding_constraint(x_TD, split(tokens)),
        project=project_split if mesh.shape["tensor"] > 1 else project,
        attend=attend,
        embed_sum=sum_partial,  # each device looks up all tokens in its rows, and not its tokens in all rows
        vocab_sum=lambda x_N: lax.with_sharding_constraint(x_N, split(BATCH)),
        vocab_max=lambda x_N: lax.with_sharding_constraint(x_N, split(BATCH)),
        parts=(size_of(BATCH, mesh.shape), mesh.shape["tensor"]),
    )


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. An axis that the mesh leaves out has size one."""
    device_mesh, layout = mesh.over(AXES, devices), LAYOUT.along(mesh.split_axes(AXES))
    tensor.require_fit(config, train, device_mesh.shape["tensor"])
    used = replace(layout, shards=()).spec(config, mesh.sizes)
    implementation = Implementation(hooks=hooks(device_mesh, used, train.sequence_parallel), compiler_partitioned=True)
    return assemble(config, device_mesh, train, layout, implementation)


TWINS = {("data",): "data", ("fsdp",): "fsdp", ("tensor",): "tensor", ("fsdp", "tensor"): "three_d"}
"""Mesh axes that go together -> the strategy that is the same by hand."""
AUTO = Strategy("auto", AXES, build, ("sequence_parallel",), LAYOUT, twins=TWINS)
