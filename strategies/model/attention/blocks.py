"""Softmax attention of one block of queries to one block of keys, without residuals of the size of its scores.

A block is a range of queries and a range of keys. With `causal=True` the last keys are those of the query tokens, and a
query attends to no key after its own token. With a mask it attends to the keys where the mask is true. Otherwise each
query attends to each key.

Each head of keys serves H / J heads of queries in a row. Gradients of keys and values are sums over these.

Dims: B batch, T query tokens, S key tokens, H heads of queries, J heads of keys and values, K head dim.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


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


def mix(q_BHTK: Array, k_BJSK: Array, v_BJSK: Array, causal: bool = False, mask_TS: Array | None = None) -> Mix:
    """Attention of a block's queries to its keys, not normalised. A dim of blocks may follow H, also in the mask."""
    scores_BHTS = _scores(q_BHTK, k_BJSK, causal, mask_TS)
    largest_BHT1 = scores_BHTS.max(-1, keepdims=True)
    weights_BHTS = jnp.exp(scores_BHTS - largest_BHT1)
    total_BHT1 = weights_BHTS.sum(-1, keepdims=True)
    mixed_BHTK = _einsum("h...ts,j...sk->h...tk", weights_BHTS.astype(v_BJSK.dtype), v_BJSK, v_BJSK.shape[1])
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
    queries: Queries, k_BJSK: Array, v_BJSK: Array, causal: bool = False, mask_TS: Array | None = None
) -> tuple[Array, Array, Array]:
    """A block's contributions to dQ, dK and dV, in float32 (Dao et al. 2022, appendix B.2)."""
    q_BHTK, dmixed_BHTK, log_total_BHT1, delta_BHT1 = queries
    weights_BHTS, heads = jnp.exp(_scores(q_BHTK, k_BJSK, causal, mask_TS) - log_total_BHT1), k_BJSK.shape[1]
    dv_BJSK = _einsum("h...ts,h...tk->j...sk", weights_BHTS.astype(v_BJSK.dtype), dmixed_BHTK, heads)
    dweights_BHTS = _einsum("h...tk,j...sk->h...ts", dmixed_BHTK, v_BJSK, heads)
    dscores_BHTS = (weights_BHTS * (dweights_BHTS - delta_BHT1)).astype(q_BHTK.dtype)
    scale = q_BHTK.shape[-1] ** -0.5
    dq_BHTK = _einsum("h...ts,j...sk->h...tk", dscores_BHTS, k_BJSK, heads) * scale
    dk_BJSK = _einsum("h...ts,h...tk->j...sk", dscores_BHTS, q_BHTK * scale, heads)
    return dq_BHTK, dk_BJSK, dv_BJSK


def _scores(q_BHTK: Array, k_BJSK: Array, causal: bool, mask_TS: Array | None) -> Array:
    scaled_BHTK = q_BHTK * q_BHTK.shape[-1] ** -0.5
    scores_BHTS = _einsum("h...tk,j...sk->h...ts", scaled_BHTK, k_BJSK, k_BJSK.shape[1])
    if causal:
        key_S = jnp.arange(k_BJSK.shape[2])
        mask_TS = key_S[-q_BHTK.shape[2] :, None] >= key_S
    return scores_BHTS if mask_TS is None else jnp.where(mask_TS, scores_BHTS, jnp.finfo(jnp.float32).min)


def _einsum(subscripts: str, one: Array, other: Array, heads: int) -> Array:
    """Batched matmul with float32 sums, whatever the dtype of the operands.

    In the subscripts h stands for the batch and the heads of queries, j for the batch and the `heads` heads of keys.
    """
    einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)
    if one.shape[1] == other.shape[1] == heads:
        return einsum(subscripts.replace("h", "").replace("j", ""), one, other)
    terms, operands = subscripts.split("->")[0].split(","), (one, other)
    # Group the heads of queries by the head of keys that they share.
    grouped = [
        x.reshape(len(x), heads, -1, *x.shape[2:]) if term[0] == "h" else x
        for term, x in zip(terms, operands, strict=True)
    ]
    result = einsum(subscripts.replace("j", "bj").replace("h", "bjg"), *grouped)
    return result if subscripts.split("->")[1][0] == "j" else result.reshape(len(one), -1, *result.shape[3:])
