"""Sparse attention: groups of queries attend to the keys in their reach (reach.py); other keys are skipped.

Near keys: queries are in N blocks of consecutive tokens. Block n attends to the keys of its own block and of the blocks
before it that the window reaches. Far keys of strided attention: tokens whose positions have the same remainder attend
to each other, so there is a group for each remainder. Far keys of fixed attention: all queries are one group, and the
keys are the last tokens of each block. Attention to near and far keys is merged by `blocks.merged`.

Each group is a batched matmul without scores kept for the backward pass (dense.py).

Dims: B batch, N groups, T query tokens (t of a group), S key tokens (s of a group), H query heads, J KV heads, K head
dim, C = 2 (key, value), A = H x K, E = J x K.
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from strategies.model.attention.dense import Mix, Queries, delta, gradients, merged, mix, normalised, sink_gradient
from strategies.model.attention.qkv import ATTENDED, QKV
from strategies.model.attention.reach import Reach


class Groups(NamedTuple):
    """How queries and keys are grouped. The functions act on the last two dims, tokens and features.

    Attributes:
        queries: [...,T,K] -> [...,N,t,K].
        join: its inverse.
        keys: [...,S,K] -> [...,N,s,K]; a key can be in several groups.
        reached: (positions of queries, positions of keys) -> whether they attend.
    """

    queries: Callable[[Array], Array]
    join: Callable[[Array], Array]
    keys: Callable[[Array], Array]
    reached: Callable[[Array, Array], Array]

    def mask(self, query_T1: Array, key_S1: Array) -> Bool[Array, "N t s"]:
        """Mask of the scores. Token positions start at 1; 0 and below are padding."""
        query_Nt1, key_N1s = self.queries(query_T1) - 1, self.keys(key_S1).swapaxes(-1, -2) - 1
        return self.reached(query_Nt1, key_N1s) & (query_Nt1 >= key_N1s) & (key_N1s >= 0)


def groups_of(reach: Reach, tokens: int, earlier: int) -> Iterator[Groups]:
    """Groups for `tokens` queries, whose keys follow the keys of `earlier` preceding tokens."""
    size, before = reach.block(tokens)
    yield Groups(
        partial(_blocks, size=size),
        _joined,
        partial(_block_keys, size=size, before=before, earlier=earlier),
        reach.near,
    )
    if reach.stride is None:
        return
    if reach.summary:
        whole = partial(jnp.expand_dims, axis=-3)
        last = partial(_last_of_blocks, size=reach.stride, count=reach.summary)
        yield Groups(whole, partial(jnp.squeeze, axis=-3), last, reach.far)
    else:
        apart = partial(_apart, stride=reach.stride)
        yield Groups(apart, lambda x: _joined(x.swapaxes(-2, -3)), apart, reach.far)


def _blocks(x: Array, size: int) -> Array:
    return x.reshape(*x.shape[:-2], -1, size, x.shape[-1])


def _joined(x: Array) -> Array:
    """The inverse of `_blocks`."""
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _apart(x: Array, stride: int) -> Array:
    """Tokens grouped by position modulo `stride`."""
    return _blocks(x, stride).swapaxes(-2, -3)


def _last_of_blocks(x: Array, size: int, count: int) -> Array:
    """The last `count` tokens of each block, as one group."""
    return jnp.expand_dims(_joined(_blocks(x, size)[..., -count:, :]), -3)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _block_keys(x: Array, size: int, before: int, earlier: int) -> Array:
    """Each block's own tokens, after the tokens of the blocks before it. Zeros stand before the first token."""
    tokens = x.shape[-2] - earlier
    padding = [(0, 0)] * (x.ndim - 2) + [(before * size - earlier, 0), (0, 0)]
    padded = jnp.pad(x, padding)
    shifted = (lax.slice_in_dim(padded, back * size, back * size + tokens, axis=-2) for back in range(before + 1))
    return jnp.concatenate([_blocks(each, size) for each in shifted], -2)


def _block_keys_forward(x: Array, size: int, before: int, earlier: int) -> tuple[Array, None]:
    return _block_keys(x, size, before, earlier), None


def _block_keys_backward(size: int, before: int, earlier: int, _: None, dkeys: Array) -> tuple[Array]:
    """Add each block's gradients to its tokens' gradients in place. Autodiff would pad each shift to all tokens."""
    parts = [_joined(part) for part in jnp.split(dkeys, before + 1, -2)]
    tokens = parts[0].shape[-2]
    dx = jnp.pad(parts[0], [(0, 0)] * (parts[0].ndim - 2) + [(0, before * size), (0, 0)])
    for back, part in enumerate(parts[1:], 1):
        start = back * size
        sums = lax.slice_in_dim(dx, start, start + tokens, axis=-2) + part
        dx = lax.dynamic_update_slice_in_dim(dx, sums, start, -2)
    return (lax.slice_in_dim(dx, before * size - earlier, None, axis=-2),)


_block_keys.defvjp(_block_keys_forward, _block_keys_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def attend_sparse(
    qkv: QKV, earlier_BSCE: Float[Array, "B S 2 E"] | None, reach: Reach, axis: str | None = None
) -> Float[Array, "B T A"]:
    """Sparse softmax attention of consecutive tokens.

    Args:
        earlier_BSCE: keys and values of preceding tokens; None without any.
        axis: mesh axis that splits the tokens of a sequence; None if not split. With a window it is also None if all
            preceding tokens exist, wherever in the sequence they are.
    """
    return _forward(qkv, earlier_BSCE, reach, axis)[0]


def _grouped(
    qkv: QKV, earlier_BSCE: Array | None, reach: Reach, axis: str | None
) -> tuple[Array, Array, Array, list[tuple[Groups, Array]]]:
    """Queries [B,H,T,K], all keys and values [B,J,S,K], and the groups with their masks."""
    tokens, earlier = qkv.tokens, 0 if earlier_BSCE is None else earlier_BSCE.shape[1]
    q_BHTK, *kv = qkv.heads_first
    if earlier_BSCE is not None:
        before = earlier_BSCE.reshape(*earlier_BSCE.shape[:3], qkv.key_heads, -1).transpose(2, 0, 3, 1, 4)
        kv = [jnp.concatenate(each, 2) for each in zip(before, kv, strict=True)]
    first = earlier if axis is None else lax.axis_index(axis) * tokens
    key_S1 = first + jnp.arange(1 - earlier, tokens + 1)[:, None]
    groups = [(each, each.mask(key_S1[earlier:], key_S1)) for each in groups_of(reach, tokens, earlier)]
    return q_BHTK, kv[0], kv[1], groups


def _forward(
    qkv: QKV, earlier_BSCE: Array | None, reach: Reach, axis: str | None
) -> tuple[Array, tuple[QKV, Array | None, Array, Array]]:
    q_BHTK, k_BJSK, v_BJSK, grouped = _grouped(qkv, earlier_BSCE, reach, axis)
    mixes = [
        Mix(*map(groups.join, mix(groups.queries(q_BHTK), groups.keys(k_BJSK), groups.keys(v_BJSK), mask_TS=mask)))
        for groups, mask in grouped
    ]
    mixed_BHTK, log_total_BHT1 = normalised(reduce(merged, mixes), q_BHTK.dtype, qkv.sink_H)
    mixed_BTA = mixed_BHTK.swapaxes(1, 2).reshape(len(mixed_BHTK), qkv.tokens, -1)
    mixed_BTA, log_total_BHT1 = checkpoint_name((mixed_BTA, log_total_BHT1), ATTENDED)
    return mixed_BTA, (qkv, earlier_BSCE, mixed_BTA, log_total_BHT1)


def _backward(
    reach: Reach, axis: str | None, residuals: tuple[QKV, Array | None, Array, Array], dmixed_BTA: Array
) -> tuple[QKV, Array | None]:
    """Sum the gradients of all groups in float32."""
    qkv, earlier_BSCE, mixed_BTA, log_total_BHT1 = residuals
    q_BHTK, k_BJSK, v_BJSK, grouped = _grouped(qkv, earlier_BSCE, reach, axis)
    mixed_BTHK, dmixed_BTHK = qkv.heads_of(mixed_BTA), qkv.heads_of(dmixed_BTA)
    delta_BHT1 = delta(mixed_BTHK, dmixed_BTHK).swapaxes(1, 2)
    queries = Queries(q_BHTK, dmixed_BTHK.swapaxes(1, 2), log_total_BHT1, delta_BHT1)
    dq_BHTK, dk_BJSK, dv_BJSK = (jnp.zeros_like(x, jnp.float32) for x in (q_BHTK, k_BJSK, v_BJSK))
    for groups, mask in grouped:
        of_group = Queries(*map(groups.queries, queries))
        dq, dk, dv = gradients(of_group, groups.keys(k_BJSK), groups.keys(v_BJSK), mask_TS=mask)
        # Linear: the gradient of a key is the sum over its groups.
        add_keys, add_values = (jax.vjp(groups.keys, each)[1] for each in (dk_BJSK, dv_BJSK))
        dq_BHTK += groups.join(dq)
        dk_BJSK += add_keys(dk)[0]
        dv_BJSK += add_values(dv)[0]
    earlier, dtype = k_BJSK.shape[2] - q_BHTK.shape[2], q_BHTK.dtype
    dsink_H = sink_gradient(qkv.sink_H, log_total_BHT1, delta_BHT1)
    dqkv = qkv.with_gradients(dq_BHTK, dk_BJSK[:, :, earlier:], dv_BJSK[:, :, earlier:], dsink_H)
    if earlier_BSCE is None:
        return dqkv, None
    dkv = jnp.stack([dk_BJSK[:, :, :earlier], dv_BJSK[:, :, :earlier]], 3)
    return dqkv, dkv.transpose(0, 2, 3, 1, 4).reshape(earlier_BSCE.shape).astype(dtype)


attend_sparse.defvjp(_forward, _backward)
