"""Weight specs: what the parts of the model declare about each weight; and operations that every part has with weights.

Sharding, checkpoints, formulas, gradient sums and the optimizer read these specs. Dim names are those of
`GPTConfig.dim_sizes`.

Under explicit sharding (explicit.py) an array's type says which mesh axes split its dims. Two tags belong to it: the
gradient of a `reduced` array stays a sum on each device, and an `unreduced` array is a partial sum on each device.
Without explicit mesh axes the operations below are the plain ones, with the same program.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from strategies.config import Dtype, ReduceDtype
from strategies.gpt_config import GPTConfig

Weights = dict[str, Any]
"""A nested dict of arrays, as NNX has it: {"embedding": {...}, "blocks": {...}, "head": {...}}; with leading dense
layers also "lead", and with multi-token prediction "mtp"."""
STACKS = "layers", "dense_layers", "mtp_layers"
"""Dims over which layers' weights are stacked."""


def by_name(weights: Weights) -> dict[str, Any]:
    """The arrays of a nested dict by their paths, such as "blocks.mlp.up_DF"; `nested` is the inverse."""
    return dict(flatten_dict(weights, sep="."))


def nested(arrays: Mapping[str, Any]) -> Weights:
    """A nested dict of arrays that are given by their paths."""
    return dict(unflatten_dict(dict(arrays), sep="."))


Backward = Literal["needed", "recomputation", "unused"]
"""When the backward pass needs a weight: always; only to recompute activations that remat="dots" keeps; never."""


@dataclass(frozen=True)
class WeightSpec:
    """One weight of the model.

    Attributes:
        dims: names of its dims, in the stored order. In a model's table (`gpt.weight_specs`) a weight of the blocks is
            stacked over layers, its first dim, a weight of the leading dense layers over dense_layers, and one of the
            MTP block over mtp_layers.
        used_in: the dtype of its use: matrices and tables in the compute dtype, vectors (biases and scales of norms) in
            float32. A vector's gradient is a sum over all tokens, accumulated in the dtype of its use.
        deviation: standard deviation of its initial values, which are normally distributed around 0.
        value: initial value of all its elements if `deviation` is 0.
        trained: whether the optimizer updates it. Otherwise it is a router bias (core/optimizer.py).
        name: within its part, such as "up_DF"; in a model's table the whole path, "blocks.mlp.up_DF".
    """

    dims: tuple[str, ...]
    used_in: Literal["compute", "float32"]
    deviation: float = 0.0
    value: float = 0.0
    backward: Backward = "needed"
    trained: bool = True
    name: str = ""

    @property
    def is_matrix(self) -> bool:
        """Whether it is used in the compute dtype."""
        return self.used_in == "compute"

    @property
    def is_stacked(self) -> bool:
        """Whether it is stacked over the layers of the blocks."""
        return self.dims[0] == "layers"

    @property
    def is_layered(self) -> bool:
        """Whether it is stacked over layers: of the blocks, the leading dense layers, or the MTP block."""
        return self.dims[0] in STACKS

    def used_dtype(self, dtype: Dtype) -> Dtype:
        """The dtype in which it is gathered and used, given the compute dtype."""
        return dtype if self.is_matrix else "float32"

    def summed_dtype(self, reduce_dtype: ReduceDtype) -> ReduceDtype:
        """The dtype in which its gradients are summed over devices. Router loads are counts and must not be rounded."""
        return reduce_dtype if self.trained else "float32"


def matrix(*dims: str, deviation: float = 0.02) -> WeightSpec:
    """A matrix or a table, drawn from a normal distribution, as GPT-2 draws it."""
    return WeightSpec(dims, "compute", deviation)


def vector(*dims: str, value: float = 0.0, backward: Backward = "needed", trained: bool = True) -> WeightSpec:
    """A bias or a norm's scale, initialised to one value."""
    return WeightSpec(dims, "float32", value=value, backward=backward, trained=trained)


def create(specs: Mapping[str, WeightSpec], config: GPTConfig, rngs: nnx.Rngs, padded_vocab: int = 0) -> Weights:
    """Initialise the weights of a part of the model, as `nnx.Param`s that carry their specs.

    Initial vocabulary rows do not depend on the padding, which is zero. `padded_vocab` is the number of rows with
    padding; default: the size of the vocabulary.
    """
    sizes = {**config.dim_sizes, "vocab": padded_vocab or config.vocab}

    def param(name: str, spec: WeightSpec) -> nnx.Param:
        shape = tuple(sizes[dim] for dim in spec.dims)
        if spec.deviation:
            array = spec.deviation * jax.random.normal(rngs.params(), shape)
        else:
            array = lax.full(shape, spec.value, jnp.float32)  # a Python scalar without a dtype would be weakly typed
        if spec.dims[0] == "vocab":
            array = jnp.where(jnp.arange(shape[0])[:, None] < config.vocab, array, 0)
        return nnx.Param(array, spec=replace(spec, name=name))

    return {name: param(name, spec) for name, spec in specs.items()}


def project(x_BTD: Float[Array, "B T D"], w_DA: Float[Array, "D *more A"]) -> Float[Array, "B T *more A"]:
    """Project features with one matmul, without biases. The weight may have extra dims between D and A."""
    return matmul(x_BTD, w_DA.reshape(len(w_DA), -1)).reshape(*x_BTD.shape[:-1], *w_DA.shape[1:])


def spec_of(x: Array) -> P:
    """The `PartitionSpec` in the type of an array. It is empty without explicit mesh axes."""
    return jax.typeof(x).sharding.spec


def split_of(x: Array) -> list[tuple[str, ...]]:
    """The mesh axes that split each dim, by its type."""
    entries: tuple[Any, ...] = spec_of(x).partitions
    return [entry if isinstance(entry, tuple) else (entry,) if entry else () for entry in entries]


def resharded(x: Array, **tags: Collection[str]) -> Array:
    """x with other tags (`reduced`, `unreduced`), split as before. An axis that leaves `unreduced` is summed over."""
    return jax.reshard(x, P(*spec_of(x).partitions, **{name: frozenset(axes) for name, axes in tags.items()}))


def is_partial(x: Array) -> bool:
    """Whether an array is a partial sum on each device."""
    return bool(spec_of(x).unreduced)


def sum_partial(tree: Any) -> Any:
    """Partial sums -> their sums over devices. Other arrays stay as they are."""
    return jax.tree.map(lambda x: resharded(x) if is_partial(x) else x, tree)


def scaled(x: Array, factor: Any) -> Array:
    """A partial sum times a number."""
    return x * jax.reshard(jnp.asarray(factor, x.dtype), P(reduced=spec_of(x).unreduced))


def partial_sum(x: Array) -> Float[Array, ""]:
    """The sum of all elements: a partial sum on each device over the mesh axes that split x."""
    axes = frozenset(chain(*split_of(x)))
    return lax.reduce_sum(x, range(x.ndim), out_sharding=P(unreduced=axes) if axes else None)


def zeros_like(x: Any, dtype: Any) -> Array:
    """Zeros of another dtype, of the shape and type of x."""
    if x.sharding is None or not x.sharding.spec.unreduced:
        return jnp.zeros_like(x, dtype)
    spec = x.sharding.spec
    return resharded(jnp.zeros(x.shape, dtype, out_sharding=P(*spec.partitions)), unreduced=spec.unreduced)


def varying_axes(x: Array) -> frozenset[str]:
    """The mesh axes over which an array varies, inside `jax.shard_map`."""
    return jax.typeof(x).manual_axis_type.varying


def varying_as(x: Array, like: Array) -> Array:
    """Mark x as varying over the mesh axes over which another array varies, inside `jax.shard_map`."""
    missing = tuple(varying_axes(like) - varying_axes(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Reshape an array of which at most the first and the last dim are split. Both stay split, and the last as it is.

    JAX 0.10 has no rule for the reshape of an array with tags.
    """
    spec = spec_of(x)
    if not (spec.reduced or spec.unreduced):
        return x.reshape(shape)
    shape = [x.size // -math.prod(shape) if size == -1 else size for size in shape]
    first, *_, last = split_of(x) if x.ndim > 1 else [*split_of(x), ()]
    split = [first, *[()] * (len(shape) - 2), last][: len(shape)]
    return lax.reshape(x, shape, out_sharding=P(*split, reduced=spec.reduced, unreduced=spec.unreduced))


def matmul(x_BTD: Array, w_DF: Array) -> Array:
    """Matmul over the last dim, as a two-dimensional matmul, which XLA's CPU backend runs about twice as fast.

    Where the summed dim is split, the result is `unreduced`.
    """
    x_ND, shape = reshape(x_BTD, (-1, x_BTD.shape[-1])), (*x_BTD.shape[:-1], w_DF.shape[-1])
    tokens, summed = split_of(x_ND)
    if not summed:
        return (x_ND @ w_DF).reshape(shape)
    partial_sums = P(tokens, split_of(w_DF)[1], unreduced=frozenset(summed))
    return reshape(jnp.dot(x_ND, w_DF, out_sharding=partial_sums), shape)


def broadcast_to_shards(weight: Array, x: Array) -> Array:
    """A weight in the form in which it can be added to x or multiplied by it.

    A `reduced` weight cannot meet an array that is split over the same mesh axes. It is broadcast along the dims of x
    that these axes split, and the transpose sums there.
    """
    reduced = spec_of(weight).reduced
    if not reduced:
        return weight
    first = x.ndim - weight.ndim
    shape, split = [*[1] * first, *weight.shape], [*[()] * first, *split_of(weight)]
    for dim, axes in enumerate(split_of(x)):
        if not reduced.isdisjoint(axes):
            shape[dim], split[dim] = x.shape[dim], axes
    return lax.broadcast_in_dim(weight, shape, range(first, x.ndim), out_sharding=P(*split))


def look_up(table_VD: Float[Array, "V D"], row_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Rows of a table; zeros for a row that it does not have. Gradients of a row are summed in float32."""
    rows, wide_VD = len(table_VD), table_VD.astype(jnp.float32)
    held_BT1 = ((row_BT >= 0) & (row_BT < rows))[..., None]
    return jnp.where(held_BT1, wide_VD[jnp.clip(row_BT, 0, rows - 1)], 0).astype(table_VD.dtype)
