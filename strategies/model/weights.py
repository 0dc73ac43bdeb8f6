"""How the model's parts declare their weights: each array with the names of its dims, and what the backward pass needs.

The names of the dims are those of `GPTConfig.dim_sizes`.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from strategies.config import Dtype, GPTConfig

Weights = dict[str, Any]
"""A nested dict of arrays, as NNX spells it: {"embedding": {...}, "blocks": {...}, "head": {...}}."""
Backward = Literal["needed", "recomputation", "unused"]
"""Whether the backward pass needs a weight: always; only to recompute activations that remat="dots" keeps; never."""


def param(value: Array, *dims: str, backward: Backward = "needed") -> nnx.Param:
    """A weight whose dims have names."""
    return nnx.Param(value, dims=dims, backward=backward)


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], *dims: str, std: float = 0.02) -> nnx.Param:
    """A weight drawn from a normal distribution, as GPT-2 draws it."""
    return param(std * jax.random.normal(rngs.params(), shape), *dims)


def token_table(rngs: nnx.Rngs, config: GPTConfig, padded_vocab: int) -> nnx.Param:
    """Embeddings [V,D] of the vocabulary, padded by zeros. Rows are drawn alike whatever the padding."""
    drawn_VD = 0.02 * jax.random.normal(rngs.params(), (padded_vocab, config.embed))
    return param(jnp.where(jnp.arange(padded_vocab)[:, None] < config.vocab, drawn_VD, 0), "vocab", "embed")


def is_matrix(dims: Sequence[str]) -> bool:
    """Whether a weight is a matrix or an embedding table. Otherwise it is a vector: a bias, or a norm's scale."""
    return len(set(dims) - {"layers", "qkv"}) == 2


def used_dtype(dims: Sequence[str], dtype: Dtype) -> Dtype:
    """The dtype in which a weight is used: matrices in the compute dtype, vectors in float32.

    The gradient of a vector is a sum over all tokens, accumulated in the dtype in which the vector is used.
    """
    return dtype if is_matrix(dims) else "float32"
