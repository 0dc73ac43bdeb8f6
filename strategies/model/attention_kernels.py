"""Causal self-attention that keeps no residuals of size [B,H,T,T]: over a whole sequence, and over one block.

A block is a range of queries and a range of keys. With `causal=True` the last keys are those of the query tokens, and a
query attends to no key after its own token. With a mask it attends to the keys where the mask is true. Otherwise each
query attends to each key.

Dims: B batch, T query tokens, S key tokens, D embed, H heads, K head dim, C = 3 (query, key, value), A = H x K.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.reach import Reach
from strategies.model.remat import KEPT


def matmul(x_BTD: Array, w_DF: Array) -> Array:
    """Matmul over the last dim. It is two-dimensional: XLA's CPU backend runs that about twice as fast."""
    return (x_BTD.reshape(-1, x_BTD.shape[-1]) @ w_DF).reshape(*x_BTD.shape[:-1], -1)


def project(x_BTD: Float[Array, "B T D"], qkv_DCA: Float[Array, "D 3 A"]) -> Float[Array, "B T 3 A"]:
    """Project to queries, keys and values with one matmul, without biases."""
    return matmul(x_BTD, qkv_DCA.reshape(len(qkv_DCA), -1)).reshape(*x_BTD.shape[:-1], *qkv_DCA.shape[1:])


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def attend(qkv_BTCA: Float[Array, "B T 3 A"], head_dim: int, reach: Reach | None = None) -> Float[Array, "B T A"]:
    """Causal softmax attention. The backward pass recomputes the scores (Dao et al. 2022, section 3.1).

    `reach` only masks what a token does not attend to; sparse_attention.py skips it.
    """
    return _forward(qkv_BTCA, head_dim, reach)[0]


def blocks_of(tokens: int) -> list[tuple[slice, slice]]:
    """Ranges of (queries, keys), one pair for each block: two blocks, or one if the number of tokens is odd.

    Queries of the first half attend to keys of the first half, those of the second half to all keys. Causality masks
    out queries of the first half with keys of the second, a quarter of the square. These scores are never computed.
    """
    if tokens % 2:
        return [(slice(None), slice(None))]
    early, late, everything = slice(tokens // 2), slice(tokens // 2, None), slice(None)
    return [(early, early), (late, everything)]


class Mix(NamedTuple):
    """Partial softmax attention over some of the keys, in float32. `merged` combines it with that over other keys.

    Attributes:
        mixed_BHTK: sum of values weighted by exp(score - maximum); not normalised yet.
        largest_BHT1: maximum of the scores so far (the running maximum).
        total_BHT1: sum of exp(score - maximum).
    """

    mixed_BHTK: Array
    largest_BHT1: Array
    total_BHT1: Array


def mix(q_BHTK: Array, k_BHSK: Array, v_BHSK: Array, causal: bool = False, mask_TS: Array | None = None) -> Mix:
    """Attention of a block's queries to its keys, not normalised. A dim of blocks may follow H, also in the mask."""
    scores_BHTS = _scores(q_BHTK, k_BHSK, causal, mask_TS)
    largest_BHT1 = scores_BHTS.max(-1, keepdims=True)
    weights_BHTS = jnp.exp(scores_BHTS - largest_BHT1)
    total_BHT1 = weights_BHTS.sum(-1, keepdims=True)
    mixed_BHTK = _einsum("...ts,...sk->...tk", weights_BHTS.astype(v_BHSK.dtype), v_BHSK)
    return Mix(mixed_BHTK, largest_BHT1, total_BHT1)


def merged(one: Mix, other: Mix) -> Mix:
    """Combine attention of the same queries to the keys of two blocks (Dao et al. 2022, section 3.1)."""
    largest_BHT1 = jnp.maximum(one.largest_BHT1, other.largest_BHT1)
    a_BHT1, b_BHT1 = jnp.exp(one.largest_BHT1 - largest_BHT1), jnp.exp(other.largest_BHT1 - largest_BHT1)
    return Mix(
        one.mixed_BHTK * a_BHT1 + other.mixed_BHTK * b_BHT1,
        largest_BHT1,
        one.total_BHT1 * a_BHT1 + other.total_BHT1 * b_BHT1,
    )


def normalised(mix: Mix, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Normalised attention [B,H,T,K] in `dtype`, and the log-sum-exp of the scores [B,H,T,1] in float32.

    The backward pass needs both. Dividing after the values are summed takes K divisions a query instead of T.
    """
    return (mix.mixed_BHTK / mix.total_BHT1).astype(dtype), mix.largest_BHT1 + jnp.log(mix.total_BHT1)


def delta(mixed_BHTK: Array, dmixed_BHTK: Array) -> Float[Array, "B H T 1"]:
    """Row sums of dO * O. The gradients of a query's scores all use its sum (D in Dao et al. 2022, appendix B.2)."""
    return (dmixed_BHTK.astype(jnp.float32) * mixed_BHTK.astype(jnp.float32)).sum(-1, keepdims=True)


class Queries(NamedTuple):
    """Queries and what the backward pass needs of them besides keys and values.

    Attributes:
        q_BHTK: queries.
        dmixed_BHTK: gradients of the attention's output.
        log_total_BHT1: log-sum-exp of the scores over all keys, not only those of a block.
        delta_BHT1: as `delta` returns it.
    """

    q_BHTK: Array
    dmixed_BHTK: Array
    log_total_BHT1: Array
    delta_BHT1: Array


def gradients(
    queries: Queries, k_BHSK: Array, v_BHSK: Array, causal: bool = False, mask_TS: Array | None = None
) -> tuple[Array, Array, Array]:
    """A block's contributions to dQ, dK and dV, in float32 (Dao et al. 2022, appendix B.2)."""
    q_BHTK, dmixed_BHTK, log_total_BHT1, delta_BHT1 = queries
    weights_BHTS = jnp.exp(_scores(q_BHTK, k_BHSK, causal, mask_TS) - log_total_BHT1)
    dv_BHSK = _einsum("...ts,...tk->...sk", weights_BHTS.astype(v_BHSK.dtype), dmixed_BHTK)
    dweights_BHTS = _einsum("...tk,...sk->...ts", dmixed_BHTK, v_BHSK)
    dscores_BHTS = (weights_BHTS * (dweights_BHTS - delta_BHT1)).astype(q_BHTK.dtype)
    scale = q_BHTK.shape[-1] ** -0.5
    dq_BHTK = _einsum("...ts,...sk->...tk", dscores_BHTS, k_BHSK) * scale
    dk_BHSK = _einsum("...ts,...tk->...sk", dscores_BHTS, q_BHTK * scale)
    return dq_BHTK, dk_BHSK, dv_BHSK


# Batched matmul with float32 sums, whatever the dtype of the operands.
_einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)


def _scores(q_BHTK: Array, k_BHSK: Array, causal: bool, mask_TS: Array | None) -> Array:
    scores_BHTS = _einsum("...tk,...sk->...ts", q_BHTK * q_BHTK.shape[-1] ** -0.5, k_BHSK)
    if causal:
        key_S = jnp.arange(k_BHSK.shape[2])
        mask_TS = key_S[-q_BHTK.shape[2] :, None] >= key_S
    return scores_BHTS if mask_TS is None else jnp.where(mask_TS, scores_BHTS, jnp.finfo(jnp.float32).min)


def heads(x_BTA: Array, head_dim: int) -> Array:
    """Split the features into heads, [B,T,H,K]."""
    return x_BTA.reshape(*x_BTA.shape[:-1], -1, head_dim)


def _mask(reach: Reach | None, tokens: int, queries: slice, keys: slice) -> dict[str, Any]:
    """The mask of a block, as arguments of `mix` and `gradients`."""
    if reach is None:
        return {"causal": True}
    position_T = jnp.arange(tokens)
    return {"mask_TS": reach.mask(position_T[queries, None], position_T[keys])}


def _forward(qkv_BTCA: Array, head_dim: int, reach: Reach | None) -> tuple[Array, tuple[Array, ...]]:
    q_BHTK, k_BHSK, v_BHSK = heads(qkv_BTCA, head_dim).transpose(2, 0, 3, 1, 4)
    size, dtype = q_BHTK.shape[2], qkv_BTCA.dtype
    blocks = [
        normalised(mix(q_BHTK[:, :, t], k_BHSK[:, :, s], v_BHSK[:, :, s], **_mask(reach, size, t, s)), dtype)
        for t, s in blocks_of(size)
    ]
    mixed_BHTK, log_total_BHT1 = (jnp.concatenate(parts, 2) for parts in zip(*blocks, strict=True))
    mixed_BTA = mixed_BHTK.swapaxes(1, 2).reshape(*qkv_BTCA.shape[:2], -1)
    mixed_BTA, log_total_BHT1 = checkpoint_name((mixed_BTA, log_total_BHT1), KEPT)
    return mixed_BTA, (qkv_BTCA, mixed_BTA, log_total_BHT1)


def _backward(head_dim: int, reach: Reach | None, residuals: tuple[Array, ...], dmixed_BTA: Array) -> tuple[Array]:
    """Add up the gradients of all blocks in float32."""
    qkv_BTCA, mixed_BTA, log_total_BHT1 = residuals
    q_BHTK, k_BHSK, v_BHSK = heads(qkv_BTCA, head_dim).transpose(2, 0, 3, 1, 4)
    mixed_BTHK, dmixed_BTHK = heads(mixed_BTA, head_dim), heads(dmixed_BTA, head_dim)
    delta_BHT1 = delta(mixed_BTHK, dmixed_BTHK).swapaxes(1, 2)
    queries = Queries(q_BHTK, dmixed_BTHK.swapaxes(1, 2), log_total_BHT1, delta_BHT1)
    dqkv, size = jnp.float32(0), q_BHTK.shape[2]
    for t, s in blocks_of(size):
        block_queries = Queries(*(x_BHTK[:, :, t] for x_BHTK in queries))
        grads = gradients(block_queries, k_BHSK[:, :, s], v_BHSK[:, :, s], **_mask(reach, size, t, s))
        parts = zip(grads, (t, s, s), strict=True)
        dqkv += jnp.stack([_pad_tokens(grad.swapaxes(1, 2), tokens, size) for grad, tokens in parts], 2)
    return (dqkv.reshape(qkv_BTCA.shape).astype(qkv_BTCA.dtype),)


def _pad_tokens(x_BTHK: Array, tokens: slice, size: int) -> Array:
    """Pad a range of tokens with zeros to all `size` tokens."""
    start, stop, _ = tokens.indices(size)
    return jnp.pad(x_BTHK, ((0, 0), (start, size - stop), (0, 0), (0, 0)))


attend.defvjp(_forward, _backward)
