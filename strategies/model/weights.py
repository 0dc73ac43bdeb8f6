"""Weight specs: what the parts of the model declare about each weight.

Sharding, checkpoints, formulas, gradient sums and the optimizer read these specs. Dim names are those of
`GPTConfig.dim_sizes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from strategies.config import Dtype, ReduceDtype
from strategies.gpt_config import GPTConfig
from strategies.model.sharding import matmul

Weights = dict[str, Any]
"""A nested dict of arrays, as NNX has it: {"embedding": {...}, "blocks": {...}, "head": {...}}; with leading dense
layers also "lead"."""
STACKS = "layers", "dense_layers"
"""Dims over which layers' weights are stacked."""
Backward = Literal["needed", "recomputation", "unused"]
"""When the backward pass needs a weight: always; only to recompute activations that remat="dots" keeps; never."""


@dataclass(frozen=True)
class WeightSpec:
    """One weight of the model.

    Attributes:
        dims: names of its dims, in the stored order. In a model's table (`gpt.weight_specs`) a weight of the blocks is
            stacked over layers, its first dim, and a weight of the leading dense layers over dense_layers.
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
        """Whether it is stacked over layers: of the blocks, or the leading dense layers."""
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


def look_up(table_VD: Float[Array, "V D"], row_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Rows of a table; zeros for a row that it does not have. Gradients of a row are summed in float32."""
    rows, wide_VD = len(table_VD), table_VD.astype(jnp.float32)
    held_BT1 = ((row_BT >= 0) & (row_BT < rows))[..., None]
    return jnp.where(held_BT1, wide_VD[jnp.clip(row_BT, 0, rows - 1)], 0).astype(table_VD.dtype)
