"""Ring attention: causal attention over sequences whose tokens are split over the mesh axis `context`.

Each device keeps its queries. Keys and values travel once around a ring of devices. Each device accumulates attention
to the keys that arrive, with a running maximum and a running sum (Liu et al. 2023, "Ring Attention with Blockwise
Transformers", section 3). In the backward pass keys and values travel around the ring a second time, together with
their gradients, to which each device adds its contribution.

On n devices a sequence has 2n chunks, and device i holds two of them (Llama Team 2024, "The Llama 3 Herd of Models",
section 3.3.2): chunk i, its early chunk, and chunk 2n - 1 - i, its late chunk. This balances causal attention: all
devices have the same work. Device i computes these pairs of (its queries, keys):

    keys of device i      (early, early) and (late, late), both with a causal mask, and (late, early)
    keys of device j < i  (late, early) and (early, early)
    keys of device j > i  (late, early) and (late, late)

These are 2n + 1 of its 4n pairs of chunks. Causality masks out the others, which are not computed.

Dims: B batch, T query tokens of a chunk, S key tokens of a chunk, H query heads, J KV heads, K head dim, P = 2 (early,
late), C = 2 (key, value), A = H x K.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.attention.chunk import gradients, mix
from strategies.model.attention.dense import Mix, Queries, delta, merged, normalised, sink_gradient
from strategies.model.attention.qkv import ATTENDED, QKV, in_a_row

AXIS = "context"
EARLY, LATE = 0, 1
Mixes = tuple[Mix, Mix]
"""Attention of the early and the late queries."""
Grads = tuple[Array, Array]
"""Gradients of queries, and gradients of keys and values."""


def zigzag(x: Array, dim: int) -> Array:
    """This device's early and late chunk of an array of whole sequences, whose token dim is `dim`."""
    device, chunks = lax.axis_index(AXIS), 2 * lax.axis_size(AXIS)
    size = x.shape[dim] // chunks
    return jnp.concatenate(
        [lax.dynamic_slice_in_dim(x, chunk * size, size, dim) for chunk in (device, chunks - 1 - device)], dim
    )


def ring_attention(qkv: QKV, kind: str = "xla", reach: None = None) -> Float[Array, "B 2*T A"]:
    """Causal attention of this device's tokens, as `zigzag` selects them, to all earlier tokens on any device.

    Attention is dense, over at least two devices; arguments as for `causal_attention`. On CPUs a permute waits for all
    devices of the mesh, including other rings, so do not call this in a branch that only some devices take.
    """
    batch, tokens, groups, _ = qkv.qkv_BTCE.shape
    qkv_BPTCJK = qkv.qkv_BTCE.reshape(batch, 2, tokens // 2, groups, -1, qkv.head_dim)
    qkv_PCBJTK = qkv_BPTCJK.transpose(1, 3, 0, 4, 2, 5)
    q_PBHTK = in_a_row([qkv_PCBJTK[:, group] for group in range(groups - 2)], 2)
    mixed_PBHTK: Any = attend_around(q_PBHTK, qkv_PCBJTK[:, -2:], qkv.sink_H, kind)
    return mixed_PBHTK.transpose(1, 0, 3, 2, 4).reshape(batch, tokens, -1)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend_around(q_PBHTK: Array, kv_PCBJSK: Array, sink_H: Array | None, kind: str) -> Array:
    """Softmax attention [P,B,H,T,K] of this device's queries to the keys of all devices. `kind` names the kernel."""
    return _forward(q_PBHTK, kv_PCBJSK, sink_H, kind)[0]


def _send_to_next(x: Any) -> Any:
    """Permute around the ring: send to the next device, receive from the previous one."""
    size = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(device, (device + 1) % size) for device in range(size)])


def _before(hop: Array | int) -> Array:
    """Whether the keys that arrived after `hop` hops come from an earlier device.

    If so, early queries attend to early keys; otherwise late queries attend to late keys.
    """
    return hop <= lax.axis_index(AXIS)


def _chunk(arrays: Any, before: Array) -> Any:
    """The early or late chunks; they attend to the same chunk of the keys that arrived."""
    chunk = jnp.where(before, EARLY, LATE)
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, chunk, keepdims=False), arrays)


def _only(mix: Mix, where: Array) -> Mix:
    """The same attention where the condition holds; elsewhere attention to no keys, which `merged` ignores."""
    return mix._replace(largest_BHT1=jnp.where(where, mix.largest_BHT1, jnp.finfo(jnp.float32).min))


def _forward(q_PBHTK: Array, kv_PCBJSK: Array, sink_H: Array | None, kind: str) -> tuple[Array, tuple[Any, ...]]:
    """Send keys and values to the next device while this one computes with them, except after the last hop."""
    q_BHTK = q_PBHTK[LATE]

    def compute(mixes: Mixes, kv_PCBJSK: Array, hop: Array | int) -> Mixes:
        (early, late), before = mixes, _before(hop)
        late = merged(late, mix(kind, q_BHTK, *kv_PCBJSK[EARLY]))
        same = mix(kind, _chunk(q_PBHTK, before), *_chunk(kv_PCBJSK, before))
        return merged(early, _only(same, before)), merged(late, _only(same, ~before))

    def tick(carry: tuple[Mixes, Array], hop: Array) -> tuple[tuple[Mixes, Array], None]:
        mixes, kv_PCBJSK = carry
        return (compute(mixes, kv_PCBJSK, hop), _send_to_next(kv_PCBJSK)), None

    size, arrived_PCBJSK = lax.axis_size(AXIS), _send_to_next(kv_PCBJSK)
    early, late = (mix(kind, q_PBHTK[chunk], *kv_PCBJSK[chunk], causal=True) for chunk in (EARLY, LATE))
    own = early, merged(late, mix(kind, q_BHTK, *kv_PCBJSK[EARLY]))
    (mixes, arrived_PCBJSK), _ = lax.scan(tick, (own, arrived_PCBJSK), jnp.arange(1, size - 1))
    mixes = compute(mixes, arrived_PCBJSK, size - 1)
    mixed_PBHTK, log_total_PBHT1 = jax.tree.map(
        lambda *chunks: jnp.stack(chunks), *(normalised(each, q_PBHTK.dtype, sink_H) for each in mixes)
    )
    mixed_PBHTK, log_total_PBHT1 = checkpoint_name((mixed_PBHTK, log_total_PBHT1), ATTENDED)
    return mixed_PBHTK, (q_PBHTK, kv_PCBJSK, sink_H, mixed_PBHTK, log_total_PBHT1)


def _backward(kind: str, residuals: tuple[Any, ...], dmixed_PBHTK: Array) -> tuple[Array, Array, Array | None]:
    """Accumulate gradients of keys and values around the ring; the last hop returns them to their owner.

    They travel in the compute dtype and arrive while the device computes its contribution. Gradients of queries stay on
    their device and are accumulated in float32.
    """
    q_PBHTK, kv_PCBJSK, sink_H, mixed_PBHTK, log_total_PBHT1 = residuals
    delta_PBHT1 = delta(mixed_PBHTK, dmixed_PBHTK)
    answered = Queries(q_PBHTK, dmixed_PBHTK, log_total_PBHT1, delta_PBHT1), mixed_PBHTK
    early, late = (jax.tree.map(itemgetter(chunk), answered) for chunk in (EARLY, LATE))

    def compute(grads: Grads, kv_PCBJSK: Array, hop: Array | int) -> Grads:
        (dq_PBHTK, dkv_PCBJSK), before = (grads[0], _send_to_next(grads[1])), _before(hop)
        across = gradients(kind, *late, *kv_PCBJSK[EARLY])
        same = gradients(kind, *_chunk(answered, before), *_chunk(kv_PCBJSK, before))
        of_early, of_late = ([jnp.where(where, x, 0) for x in same] for where in (before, ~before))
        more_dq_PBHTK, more_dkv_PCBJSK = _summed(of_early, across, of_late)
        return dq_PBHTK + more_dq_PBHTK, (dkv_PCBJSK + more_dkv_PCBJSK).astype(kv_PCBJSK.dtype)

    def tick(carry: tuple[Grads, Array], hop: Array) -> tuple[tuple[Grads, Array], None]:
        grads, kv_PCBJSK = carry
        return (compute(grads, kv_PCBJSK, hop), _send_to_next(kv_PCBJSK)), None

    size, arrived_PCBJSK = lax.axis_size(AXIS), _send_to_next(kv_PCBJSK)
    dq_PBHTK, dkv_PCBJSK = _summed(
        gradients(kind, *early, *kv_PCBJSK[EARLY], causal=True),
        gradients(kind, *late, *kv_PCBJSK[EARLY]),
        gradients(kind, *late, *kv_PCBJSK[LATE], causal=True),
    )
    own = dq_PBHTK, dkv_PCBJSK.astype(kv_PCBJSK.dtype)
    (grads, arrived_PCBJSK), _ = lax.scan(tick, (own, arrived_PCBJSK), jnp.arange(1, size - 1))
    dq_PBHTK, dkv_PCBJSK = compute(grads, arrived_PCBJSK, size - 1)
    return (
        dq_PBHTK.astype(q_PBHTK.dtype),
        _send_to_next(dkv_PCBJSK),
        sink_gradient(sink_H, log_total_PBHT1, delta_PBHT1),
    )


def _summed(early: Sequence[Array], across: Sequence[Array], late: Sequence[Array]) -> Grads:
    """Sum the gradients of the (query, key) chunk pairs (early, early), (late, early) and (late, late)."""
    dq_PBHTK = jnp.stack([early[0], across[0] + late[0]])
    early_dkv = [one + other for one, other in zip(early[1:], across[1:], strict=True)]
    return dq_PBHTK, jnp.stack([jnp.stack(early_dkv), jnp.stack(late[1:])])


attend_around.defvjp(_forward, _backward)
