"""Causal self-attention that keeps nothing of size [B,H,T,T] for the backward pass; whole, and a block at a time.

A block is some of the queries and some of the keys. `causal` says that these are the same tokens, and no query sees a
key behind it; else each query sees each key.

Dims: B batch, T query tokens, S key tokens, D embed, H heads, K head dim, C = 3 (query, key, value), A = H x K.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

KEPT = "kept"
"""The name of what is worth keeping for the backward pass besides the outputs of plain matmuls."""


def matmul(x_BTD: Array, w_DF: Array) -> Array:
    """Matmul over the last dim as a two-dimensional one, which XLA's CPU backend runs about twice as fast."""
    return (x_BTD.reshape(-1, x_BTD.shape[-1]) @ w_DF).reshape(*x_BTD.shape[:-1], -1)


def project(x_BTD: Float[Array, "B T D"], qkv_DCA: Float[Array, "D 3 A"]) -> Float[Array, "B T 3 A"]:
    """Queries, keys and values, without their biases, by one matmul."""
    return matmul(x_BTD, qkv_DCA.reshape(len(qkv_DCA), -1)).reshape(*x_BTD.shape[:-1], *qkv_DCA.shape[1:])


def causal_attention(qkv_BTCA: Float[Array, "B T 3 A"], head_dim: int, kind: str) -> Float[Array, "B T A"]:
    """Attention of each token to itself and those before it, in heads of `head_dim` features.

    `kind` is "cudnn" for the fused kernel (half precision on NVIDIA GPUs) and else "xla".
    """
    batch, tokens, _, features = qkv_BTCA.shape
    qkv_BTCHK = qkv_BTCA.reshape(batch, tokens, 3, -1, head_dim)
    if kind == "cudnn":
        q_BTHK, k_BTHK, v_BTHK = (qkv_BTCHK[:, :, c] for c in range(3))
        mixed_BTHK = jax.nn.dot_product_attention(q_BTHK, k_BTHK, v_BTHK, is_causal=True, implementation="cudnn")
    else:
        mixed_BTHK = attend(*qkv_BTCHK.transpose(2, 0, 3, 1, 4)).swapaxes(1, 2)
    return mixed_BTHK.reshape(batch, tokens, features)


@jax.custom_vjp
def attend(q_BHTK: Array, k_BHSK: Array, v_BHSK: Array) -> Array:
    """Softmax attention, [B,H,T,K]. The backward pass computes the scores again (Dao et al. 2022, section 3.1)."""
    return _forward(q_BHTK, k_BHSK, v_BHSK)[0]


class Mix(NamedTuple):
    """Values mixed by softmax over some of the keys, in float32, and the statistics to go on with others.

    Attributes:
        mixed_BHTK: sums of values, each times its exponential; not normalised yet.
        largest_BHT1: score; exponentials are relative to its own.
        total_BHT1: of exponentials.
    """

    mixed_BHTK: Array
    largest_BHT1: Array
    total_BHT1: Array


def mix(q_BHTK: Array, k_BHSK: Array, v_BHSK: Array, causal: bool = False) -> Mix:
    """What the queries of a block get from its keys."""
    scores_BHTS = _scores(q_BHTK, k_BHSK, causal)
    largest_BHT1 = scores_BHTS.max(-1, keepdims=True)
    weights_BHTS = jnp.exp(scores_BHTS - largest_BHT1)
    total_BHT1 = weights_BHTS.sum(-1, keepdims=True)
    mixed_BHTK = _einsum("bhts,bhsk->bhtk", weights_BHTS.astype(v_BHSK.dtype), v_BHSK)
    return Mix(mixed_BHTK, largest_BHT1, total_BHT1)


def merged(one: Mix, other: Mix) -> Mix:
    """What the same queries get from the keys of both blocks (Dao et al. 2022, section 3.1)."""
    largest_BHT1 = jnp.maximum(one.largest_BHT1, other.largest_BHT1)
    a_BHT1, b_BHT1 = jnp.exp(one.largest_BHT1 - largest_BHT1), jnp.exp(other.largest_BHT1 - largest_BHT1)
    return Mix(
        one.mixed_BHTK * a_BHT1 + other.mixed_BHTK * b_BHT1,
        largest_BHT1,
        one.total_BHT1 * a_BHT1 + other.total_BHT1 * b_BHT1,
    )


def normalised(mix: Mix, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Mixed values whose weights add up to one, and the logarithm of what they did add up to; both worth keeping.

    Normalised after the values are mixed: K divisions a token instead of T.
    """
    mixed_BHTK = checkpoint_name((mix.mixed_BHTK / mix.total_BHT1).astype(dtype), KEPT)
    return mixed_BHTK, checkpoint_name(mix.largest_BHT1 + jnp.log(mix.total_BHT1), KEPT)


def shared(mixed_BHTK: Array, dmixed_BHTK: Array) -> Float[Array, "B H T 1"]:
    """What all scores of a query have in common in their gradients (D in Dao et al. 2022, appendix B.2)."""
    return (dmixed_BHTK.astype(jnp.float32) * mixed_BHTK.astype(jnp.float32)).sum(-1, keepdims=True)


class Queries(NamedTuple):
    """What the backward pass has of queries: the gradients of what they mixed, and of all keys two numbers a head."""

    q_BHTK: Array
    dmixed_BHTK: Array
    log_total_BHT1: Array
    shared_BHT1: Array


def gradients(queries: Queries, k_BHSK: Array, v_BHSK: Array, causal: bool = False) -> tuple[Array, Array, Array]:
    """A block's part of the gradients of its queries, keys and values (Dao et al. 2022, appendix B.2), in float32."""
    q_BHTK, dmixed_BHTK, log_total_BHT1, shared_BHT1 = queries
    weights_BHTS = jnp.exp(_scores(q_BHTK, k_BHSK, causal) - log_total_BHT1)
    dv_BHSK = _einsum("bhts,bhtk->bhsk", weights_BHTS.astype(v_BHSK.dtype), dmixed_BHTK)
    dweights_BHTS = _einsum("bhtk,bhsk->bhts", dmixed_BHTK, v_BHSK)
    dscores_BHTS = (weights_BHTS * (dweights_BHTS - shared_BHT1)).astype(q_BHTK.dtype)
    scale = q_BHTK.shape[-1] ** -0.5
    dq_BHTK = _einsum("bhts,bhsk->bhtk", dscores_BHTS, k_BHSK) * scale
    dk_BHSK = _einsum("bhts,bhtk->bhsk", dscores_BHTS, q_BHTK * scale)
    return dq_BHTK, dk_BHSK, dv_BHSK


# A batched matmul whose sums are not rounded to the dtype of its operands.
_einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)


def _scores(q_BHTK: Array, k_BHSK: Array, causal: bool) -> Array:
    tokens = jnp.arange(q_BHTK.shape[2])
    scores_BHTS = _einsum("bhtk,bhsk->bhts", q_BHTK * q_BHTK.shape[-1] ** -0.5, k_BHSK)
    return jnp.where(tokens[:, None] >= tokens, scores_BHTS, jnp.finfo(jnp.float32).min) if causal else scores_BHTS


def _forward(q_BHTK: Array, k_BHSK: Array, v_BHSK: Array) -> tuple[Array, tuple[Array, ...]]:
    """All queries and all keys in one block."""
    mixed_BHTK, log_total_BHT1 = normalised(mix(q_BHTK, k_BHSK, v_BHSK, causal=True), v_BHSK.dtype)
    return mixed_BHTK, (q_BHTK, k_BHSK, v_BHSK, mixed_BHTK, log_total_BHT1)


def _backward(kept: tuple[Array, ...], dmixed_BHTK: Array) -> tuple[Array, Array, Array]:
    q_BHTK, k_BHSK, v_BHSK, mixed_BHTK, log_total_BHT1 = kept
    queries = Queries(q_BHTK, dmixed_BHTK, log_total_BHT1, shared(mixed_BHTK, dmixed_BHTK))
    dq_BHTK, dk_BHSK, dv_BHSK = gradients(queries, k_BHSK, v_BHSK, causal=True)
    return dq_BHTK.astype(q_BHTK.dtype), dk_BHSK.astype(k_BHSK.dtype), dv_BHSK.astype(v_BHSK.dtype)


attend.defvjp(_forward, _backward)
