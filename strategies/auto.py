"""Left to the compiler: data, fsdp, tensor, and fsdp x tensor from rules (GSPMD; Xu et al. 2021, sections 2 and 3).

The step is that of one device, in `jax.jit` and no `jax.shard_map`: it sees whole arrays, and XLA makes of it what each
device does. It is told which mesh axes split which dims:

    heads, mlp, vocab   of weights, and what is made with them: tensor
    the first dim besides that fsdp divides, but layers: of weights as they are stored, not as they are used
    batch               data, fsdp
    tokens              of the residual stream, between the matmuls: tensor; with `sequence_parallel=False` nothing

and wherever the strategies by hand have a collective it is told both layouts, of what goes in forward and of the
gradient that comes back. Left alone it would sum gradients where one device's part is all that is needed, gather the
table to look embeddings up, or send what is computed and not the weights. With so much said, what it sends is

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], in the compute dtype: each layer forward, and again backward
    x[B,T_tensor,D] -all_gather(tensor)-> x[B,T,D], as often as in tensor.py
    x[B,T,D] partial sums -all_reduce(tensor)-> x[B,T,D], as often as in tensor.py, which can scatter
    dW[D,F] -all_reduce(data or fsdp)-> dW[D,F], each weight, each microbatch, in the compute dtype; fsdp.py scatters

the bytes of data.py, fsdp.py and tensor.py, but for this:

    An all-reduce is twice the reduce-scatter that would do: it leaves whole what is then cut. XLA's backends for GPUs
    and TPUs make a reduce-scatter of the two, that for CPUs does not.
    A sum over devices stands where its terms are made, and no program can say that it may wait: gradients are summed in
    every microbatch (data.py: once a step), those of a tied table for each of its two uses (data.py: once), and with
    `logits_bytes` those of the table for each chunk of tokens (fsdp.py and data.py: once).
    Of the positions the tensor axis gathers the gradient (tensor.py: an all-reduce, which is twice that).
    A table that fsdp cuts along D has its embedding's gradient scattered by an all-to-all of dx, and no all-reduce.

With fsdp x tensor each does its part beside the other: no group sends over both axes at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies import data, fsdp, tensor
from strategies.assemble import assemble
from strategies.attention import causal_attention, project
from strategies.config import GPTConfig, TrainConfig
from strategies.gpt import GATHERED, Hooks
from strategies.mesh import Devices, MeshSpec
from strategies.shards import Shards
from strategies.step import Spread, Step, Strategy

BATCH = (*data.AXES, *fsdp.AXES)
AXES = (*BATCH, *tensor.AXES)


@dataclass(frozen=True)
class Rules:
    """Which mesh axes split which dims of the weights.

    Raises:
        Infeasible: an axis that does not divide what it is to split.
    """

    config: GPTConfig
    mesh: MeshSpec

    def __post_init__(self) -> None:
        """Refuse what fsdp refuses."""
        Shards("fsdp", self.size("fsdp"), self.config)

    def size(self, *axes: str) -> int:
        """Devices along some axes."""
        return math.prod(self.mesh.sizes.get(axis, 1) for axis in axes)

    def used(self, dims: Sequence[str]) -> P:
        """Of a weight in its matmul."""
        return P(*(tensor.SPLIT.get(dim) if self.size("tensor") > 1 else None for dim in dims))

    def stored(self, dims: Sequence[str]) -> P:
        """Of a weight between steps, and of its gradient: cut as shards.py says along what the tensor axis leaves."""
        axes, sizes = list(self.used(dims)), self.config.dim_sizes
        left = [i for i, dim in enumerate(dims) if dim != "layers" and axes[i] is None]
        for i in [i for i in left if sizes[dims[i]] % self.size("fsdp") == 0][:1]:
            axes[i] = "fsdp"
        return P(*axes)


def moved(x: Array, to: NamedSharding, back: NamedSharding) -> Array:
    """The same, split `to`, and its gradient split `back`: autodiff alone would have that as x is, whole where x is."""

    @jax.custom_vjp
    def move(x: Array) -> Array:
        return lax.with_sharding_constraint(x, to)

    move.defvjp(
        lambda x: (lax.with_sharding_constraint(x, to), None),
        lambda _, dx: (lax.with_sharding_constraint(dx, back),),
    )
    return move(x)


def hooks(mesh: Mesh, rules: Rules, sequence_parallel: bool) -> Hooks:
    """Where the hand-written strategies communicate, the layouts between which they do."""

    def split(*axes: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*axes))

    constrain = lax.with_sharding_constraint
    tokens = "tensor" if sequence_parallel else None
    all_tokens, own_tokens = split(BATCH), split(BATCH, tokens)

    def gather(weight: Array, dims: Sequence[str]) -> Array:
        used, stored = rules.used(dims), rules.stored(dims)
        weight = moved(weight, to=split(*used), back=split(*stored))
        if min(rules.size("fsdp"), rules.size("tensor")) > 1:  # or the compiler groups devices along neither axis
            weight = constrain(weight, split(*used))
        # The head goes back where it went forward, and of two gathers the compiler would not make one.
        return checkpoint_name(weight, GATHERED) if "vocab" in dims else weight

    def attend(qkv_BTCA: Array, head_dim: int, kind: str) -> Array:
        return causal_attention(constrain(qkv_BTCA, split(BATCH, None, None, "tensor")), head_dim, kind)

    def project_split(x_BTD: Array, qkv_DCA: Array) -> Array:
        """As `project`, but of a matmul in which A, which is split, stays a dim: merged with C it would be gathered."""
        qkv_NCA = jnp.tensordot(x_BTD.reshape(-1, x_BTD.shape[-1]), qkv_DCA, 1)
        return qkv_NCA.reshape(*x_BTD.shape[:-1], *qkv_DCA.shape[1:])

    return Hooks(
        gather=gather,
        sum=partial(moved, to=own_tokens, back=all_tokens),
        all_tokens=lambda x_BTD: moved(constrain(x_BTD, own_tokens), to=all_tokens, back=own_tokens),
        own_tokens=lambda x_TD: constrain(x_TD, split(tokens)),
        project=project_split if rules.size("tensor") > 1 else project,
        attend=attend,
        # Each device looks up all tokens in its rows, and not its tokens in all rows.
        embed_sum=lambda x_BTD: moved(constrain(x_BTD, all_tokens), to=own_tokens, back=all_tokens),
        vocab_sum=lambda x_N: constrain(x_N, split(BATCH)),
        vocab_max=lambda x_N: constrain(x_N, split(BATCH)),
        parts=(rules.size(*BATCH), rules.size("tensor")),
    )


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`. An axis that the mesh leaves out has size one."""
    device_mesh, rules = mesh.over(AXES, devices), Rules(config, mesh)
    tensor.require_fit(config, train, rules.size("tensor"))
    spread = Spread(
        spec=rules.stored,
        batch_axes=tuple(axis for axis in BATCH if axis in mesh.sizes),
        vocab_shards=rules.size("tensor"),
        hooks=hooks(device_mesh, rules, train.sequence_parallel),
        microbatches=train.microbatches,
        partitioned=True,
    )
    return assemble(config, device_mesh, train, spread)


TWINS = {("data",): "data", ("fsdp",): "fsdp", ("tensor",): "tensor", ("fsdp", "tensor"): "three_d"}
"""Mesh axes that go together -> the strategy that is the same by hand."""
AUTO = Strategy("auto", AXES, build, tensor.OPTIONS, twins=TWINS)
