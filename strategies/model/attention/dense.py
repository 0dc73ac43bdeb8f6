"""Dense causal self-attention, and attention of one block of queries to one block of keys, from which all attention
but fused kernels is built. Neither keeps residuals of size [B,H,T,T].

A block is a range of queries and a range of keys. With `causal=True` the last keys belong to the query tokens, and a
query attends to no key after its own token. With a mask it attends to the keys where the mask is true. Otherwise each
query attends to each key.

A KV head serves G = H / J consecutive query heads. Their queries are treated as more queries of one head (`_grouped`),
so no keys are copied.

Dims: B batch, T query tokens, S key tokens, H query heads, J KV heads, C = H/J + 2, K head dim, A = H x K, E = J x K,
R = G x T.
"""

from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.attention.qkv import ATTENDED, QKV
from strategies.model.attention.reach import Reach


class Mix(NamedTuple):
    """Partial softmax attention over some of the keys, in float32. `merged` combines it with attention over other keys.

    Attributes:
        mixed_BHTK: unnormalised sum of values weighted by exp(score - maximum).
        largest_BHT1: running maximum of the scores.
        total_BHT1: sum of exp(score - maximum).
    """

    mixed_BHTK: Array
    largest_BHT1: Array
    total_BHT1: Array


def mix(q_BHTK: Array, k_BJSK: Array, v_BJSK: Array, causal: bool = False, mask_TS: Array | None = None) -> Mix:
    """Unnormalised attention of a block. Queries, keys and mask may have an extra dim of blocks after H."""
    heads, groups = q_BHTK.shape[1], q_BHTK.shape[1] // k_BJSK.shape[1]
    scores_BJRS = _scores(_grouped(q_BHTK, groups), k_BJSK, groups, causal, mask_TS)
    largest_BJR1 = scores_BJRS.max(-1, keepdims=True)
    weights_BJRS = jnp.exp(scores_BJRS - largest_BJR1)
    total_BJR1 = weights_BJRS.sum(-1, keepdims=True)
    mixed_BJRK = _einsum("...ts,...sk->...tk", weights_BJRS.astype(v_BJSK.dtype), v_BJSK)
    return Mix(*(_ungrouped(x, heads) for x in (mixed_BJRK, largest_BJR1, total_BJR1)))


def merged(one: Mix, other: Mix) -> Mix:
    """Combine attention of the same queries to the keys of two blocks (Dao et al. 2022, section 3.1)."""
    largest_BHT1 = jnp.maximum(one.largest_BHT1, other.largest_BHT1)
    a_BHT1, b_BHT1 = jnp.exp(one.largest_BHT1 - largest_BHT1), jnp.exp(other.largest_BHT1 - largest_BHT1)
    return Mix(
        one.mixed_BHTK * a_BHT1 + other.mixed_BHTK * b_BHT1,
        largest_BHT1,
        one.total_BHT1 * a_BHT1 + other.total_BHT1 * b_BHT1,
    )


def normalised(mix: Mix, dtype: jnp.dtype, sink_H: Array | None = None) -> tuple[Array, Array]:
    """Normalised attention [B,H,T,K] in `dtype`, and the log-sum-exp of the scores [B,H,T,1] in float32.

    The backward pass needs both. Dividing after summing the values takes K divisions per query instead of T. A sink is
    one more score, of a key whose value is zero: given both results, the other gradients do not depend on whether there
    is one.
    """
    if sink_H is not None:
        sink_H11 = sink_H[:, None, None]
        largest_BHT1 = jnp.maximum(mix.largest_BHT1, sink_H11)
        scale_BHT1 = jnp.exp(mix.largest_BHT1 - largest_BHT1)
        total_BHT1 = mix.total_BHT1 * scale_BHT1 + jnp.exp(sink_H11 - largest_BHT1)
        mix = Mix(mix.mixed_BHTK * scale_BHT1, largest_BHT1, total_BHT1)
    return (mix.mixed_BHTK / mix.total_BHT1).astype(dtype), mix.largest_BHT1 + jnp.log(mix.total_BHT1)


def delta(mixed_BHTK: Array, dmixed_BHTK: Array) -> Float[Array, "B H T 1"]:
    """Row sums of dO * O, which the gradients of all of a query's scores use (D in Dao et al. 2022, appendix B.2)."""
    return (dmixed_BHTK.astype(jnp.float32) * mixed_BHTK.astype(jnp.float32)).sum(-1, keepdims=True)


def sink_gradient(sink_H: Array | None, log_total_BHT1: Array, delta_BHT1: Array) -> Array | None:
    """Gradient of the sinks from the log-sum-exp that includes them and `delta`, with any dims before B;
    None without.
    """
    if sink_H is None:
        return None
    grad_BHT1 = -jnp.exp(sink_H[:, None, None] - log_total_BHT1) * delta_BHT1
    return grad_BHT1.sum([dim for dim in range(grad_BHT1.ndim) if dim != grad_BHT1.ndim - 3])


class Queries(NamedTuple):
    """Queries and what the backward pass needs with them.

    Attributes:
        log_total_BHT1: log-sum-exp of the scores over all keys, not only the block's.
        delta_BHT1: result of `delta`.
    """

    q_BHTK: Array
    dmixed_BHTK: Array
    log_total_BHT1: Array
    delta_BHT1: Array


def gradients(
    queries: Queries, k_BJSK: Array, v_BJSK: Array, causal: bool = False, mask_TS: Array | None = None
) -> tuple[Array, Array, Array]:
    """A block's contributions to dQ, dK and dV, in float32 (Dao et al. 2022, appendix B.2)."""
    heads, groups = queries.q_BHTK.shape[1], queries.q_BHTK.shape[1] // k_BJSK.shape[1]
    q_BJRK, dmixed_BJRK, log_total_BJR1, delta_BJR1 = (_grouped(x, groups) for x in queries)
    weights_BJRS = jnp.exp(_scores(q_BJRK, k_BJSK, groups, causal, mask_TS) - log_total_BJR1)
    dv_BJSK = _einsum("...ts,...tk->...sk", weights_BJRS.astype(v_BJSK.dtype), dmixed_BJRK)
    dweights_BJRS = _einsum("...tk,...sk->...ts", dmixed_BJRK, v_BJSK)
    dscores_BJRS = (weights_BJRS * (dweights_BJRS - delta_BJR1)).astype(q_BJRK.dtype)
    scale = q_BJRK.shape[-1] ** -0.5
    dq_BJRK = _einsum("...ts,...sk->...tk", dscores_BJRS, k_BJSK) * scale
    dk_BJSK = _einsum("...ts,...tk->...sk", dscores_BJRS, q_BJRK * scale)
    return _ungrouped(dq_BJRK, heads), dk_BJSK, dv_BJSK


def _scores(q_BJRK: Array, k_BJSK: Array, groups: int, causal: bool, mask_TS: Array | None) -> Array:
    scaled_BJRK = q_BJRK * q_BJRK.shape[-1] ** -0.5
    scores_BJRS = _einsum("...tk,...sk->...ts", scaled_BJRK, k_BJSK)
    if causal:
        key_S = jnp.arange(k_BJSK.shape[2])
        mask_TS = key_S[-q_BJRK.shape[2] // groups :, None] >= key_S
    if mask_TS is None:
        return scores_BJRS
    mask_RS = mask_TS if groups == 1 else jnp.tile(mask_TS, (groups, 1))
    return jnp.where(mask_RS, scores_BJRS, jnp.finfo(jnp.float32).min)


def _einsum(subscripts: str, one: Array, other: Array) -> Array:
    """Batched matmul with float32 sums, whatever the dtype of the operands."""
    return jnp.einsum(subscripts, one, other, preferred_element_type=jnp.float32)


def _grouped(x_BHTK: Array, groups: int) -> Array:
    """[B,H,T,K] -> [B,J,R,K]: query heads that share a KV head become more queries of one head, R = G x T.

    So scores have one shape in all matmuls, and the matmul itself sums gradients of keys over these heads.
    """
    if groups == 1:
        return x_BHTK
    x = jnp.moveaxis(x_BHTK.reshape(len(x_BHTK), -1, groups, *x_BHTK.shape[2:]), 2, -3)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _ungrouped(x_BJRK: Array, heads: int) -> Array:
    groups = heads // x_BJRK.shape[1]
    if groups == 1:
        return x_BJRK
    x = jnp.moveaxis(x_BJRK.reshape(*x_BJRK.shape[:-2], groups, -1, x_BJRK.shape[-1]), -3, 2)
    return x.reshape(len(x), heads, *x.shape[3:])


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
    of_blocks, size = [], q_BHTK.shape[2]
    for t, s in blocks_of(size):
        block_queries = Queries(*(x_BHTK[:, :, t] for x_BHTK in queries))
        grads = gradients(block_queries, k_BJSK[:, :, s], v_BJSK[:, :, s], **_mask(reach, size, t, s))
        each = zip(grads, (t, s, s), strict=True)
        of_blocks.append(qkv.together([_pad_tokens(grad.swapaxes(1, 2), tokens, size) for grad, tokens in each]))
    sums = reduce(partial(jax.tree.map, jnp.add), of_blocks)
    return (qkv.with_together(sums, sink_gradient(qkv.sink_H, log_total_BHT1, delta_BHT1)),)


def _pad_tokens(x_BTHK: Array, tokens: slice, size: int) -> Array:
    start, stop, _ = tokens.indices(size)
    return jnp.pad(x_BTHK, ((0, 0), (start, size - stop), (0, 0), (0, 0)))


attend.defvjp(_forward, _backward)
