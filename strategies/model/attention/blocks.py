"""Softmax attention of one block of queries to one block of keys, without residuals of the size of its scores.

A block is a range of queries and a range of keys. With `causal=True` the last keys belong to the query tokens, and a
query attends to no key after its own token. With a mask it attends to the keys where the mask is true. Otherwise each
query attends to each key.

A KV head serves G = H / J consecutive query heads. Their queries are treated as more queries of one head (`_grouped`),
so no keys are copied.

Dims: B batch, T query tokens, S key tokens, H query heads, J KV heads, K head dim, R = G x T.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


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
