"""Dense causal self-attention that keeps no residuals of size [B,H,T,T].

Dims: B batch, T query tokens, S key tokens, H query heads, J KV heads, C = H/J + 2, K head dim, A = H x K, E = J x K.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.attention.blocks import Queries, delta, gradients, mix, normalised, sink_gradient
from strategies.model.attention.qkv import ATTENDED, QKV, joined
from strategies.model.attention.reach import Reach


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def attend(qkv: QKV, reach: Reach | None = None) -> Float[Array, "B T A"]:
    """Causal softmax attention that recomputes scores backward (Dao et al. 2022, section 3.1). `reach` only masks."""
    return _forward(qkv, reach)[0]


def blocks_of(tokens: int) -> list[tuple[slice, slice]]:
    """Ranges of (queries, keys), one pair per block: two blocks, or one if the number of tokens is odd.

    Queries of the first half attend to keys of the first half, queries of the second half to all keys. So the quarter
    of the scores that causality masks out (early queries, late keys) is not computed.
    """
    if tokens % 2:
        return [(slice(None), slice(None))]
    early, late, everything = slice(tokens // 2), slice(tokens // 2, None), slice(None)
    return [(early, early), (late, everything)]


def _mask(reach: Reach | None, tokens: int, queries: slice, keys: slice) -> dict[str, Any]:
    if reach is None:
        return {"causal": True}
    position_T = jnp.arange(tokens)
    return {"mask_TS": reach.mask(position_T[queries, None], position_T[keys])}


def _forward(qkv: QKV, reach: Reach | None) -> tuple[Array, tuple[QKV, Array, Array]]:
    q_BHTK, k_BJSK, v_BJSK = qkv.heads_first
    size, dtype, sink_H = q_BHTK.shape[2], q_BHTK.dtype, qkv.sink_H
    blocks = [
        normalised(mix(q_BHTK[:, :, t], k_BJSK[:, :, s], v_BJSK[:, :, s], **_mask(reach, size, t, s)), dtype, sink_H)
        for t, s in blocks_of(size)
    ]
    mixed_BHTK, log_total_BHT1 = (jnp.concatenate(each, 2) for each in zip(*blocks, strict=True))
    mixed_BTA = mixed_BHTK.swapaxes(1, 2).reshape(len(mixed_BHTK), size, -1)
    mixed_BTA, log_total_BHT1 = checkpoint_name((mixed_BTA, log_total_BHT1), ATTENDED)
    return mixed_BTA, (qkv, mixed_BTA, log_total_BHT1)


def _backward(reach: Reach | None, residuals: tuple[QKV, Array, Array], dmixed_BTA: Array) -> tuple[QKV]:
    """Sum the gradients of all blocks in float32."""
    qkv, mixed_BTA, log_total_BHT1 = residuals
    q_BHTK, k_BJSK, v_BJSK = qkv.heads_first
    mixed_BTHK, dmixed_BTHK = qkv.heads_of(mixed_BTA), qkv.heads_of(dmixed_BTA)
    delta_BHT1 = delta(mixed_BTHK, dmixed_BTHK).swapaxes(1, 2)
    queries = Queries(q_BHTK, dmixed_BTHK.swapaxes(1, 2), log_total_BHT1, delta_BHT1)
    dqkv_BTCJK, size = jnp.float32(0), q_BHTK.shape[2]
    for t, s in blocks_of(size):
        block_queries = Queries(*(x_BHTK[:, :, t] for x_BHTK in queries))
        grads = gradients(block_queries, k_BJSK[:, :, s], v_BJSK[:, :, s], **_mask(reach, size, t, s))
        each = zip(grads, (t, s, s), strict=True)
        dqkv_BTCJK += joined([_pad_tokens(grad.swapaxes(1, 2), tokens, size) for grad, tokens in each], 2)
    dqkv_BTCE = dqkv_BTCJK.reshape(qkv.qkv_BTCE.shape).astype(q_BHTK.dtype)
    dsink_H = sink_gradient(qkv.sink_H, log_total_BHT1, delta_BHT1)
    return (replace(qkv, qkv_BTCE=dqkv_BTCE, sink_H=dsink_H),)


def _pad_tokens(x_BTHK: Array, tokens: slice, size: int) -> Array:
    start, stop, _ = tokens.indices(size)
    return jnp.pad(x_BTHK, ((0, 0), (start, size - stop), (0, 0), (0, 0)))


attend.defvjp(_forward, _backward)
