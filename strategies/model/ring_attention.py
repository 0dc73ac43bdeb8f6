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

These are 2n + 1 of its 4n pairs of chunks. Causality masks out the other pairs, and they are not computed.

Dims: B batch, H heads, T query tokens of a chunk, S key tokens of a chunk, K head dim, P = 2 (early, late),
C = 3 (query, key, value) or 2 (key, value), A = H x K.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.attention_kernels import Mix, Queries, delta, gradients, merged, mix, normalised
from strategies.model.remat import KEPT

AXIS = "context"
EARLY, LATE = 0, 1
Grads = tuple[Array, Array]
"""Gradients of queries, and gradients of keys and values."""


def zigzag(x: Array, dim: int) -> Array:
    """This device's early and late chunk of an array of whole sequences. Dim `dim` is that of the tokens."""
    device, chunks = lax.axis_index(AXIS), 2 * lax.axis_size(AXIS)
    size = x.shape[dim] // chunks
    return jnp.concatenate(
        [lax.dynamic_slice_in_dim(x, chunk * size, size, dim) for chunk in (device, chunks - 1 - device)], dim
    )


def ring_attention(
    qkv_BTCA: Float[Array, "B 2*T 3 A"], head_dim: int, kind: str = "xla", reach: None = None
) -> Float[Array, "B 2*T A"]:
    """Causal attention of this device's tokens, as `zigzag` selects them, to all tokens before them on any device.

    The arguments are those of `causal_attention`. `kind` is "xla", for there is no fused kernel, and attention is
    dense. It needs at least two devices. On CPUs a permutation waits for all devices of the mesh, also for those of
    other rings. Do not call this in a branch that some devices do not take.
    """
    batch, tokens, _, features = qkv_BTCA.shape
    qkv_BPTCHK = qkv_BTCA.reshape(batch, 2, tokens // 2, 3, -1, head_dim)
    qkv_PCBHTK = qkv_BPTCHK.transpose(1, 3, 0, 4, 2, 5)
    mixed_PBHTK = attend_around(qkv_PCBHTK[:, 0], qkv_PCBHTK[:, 1:])
    return mixed_PBHTK.transpose(1, 0, 3, 2, 4).reshape(batch, tokens, features)


@jax.custom_vjp
def attend_around(q_PBHTK: Array, kv_PCBHSK: Array) -> Array:
    """Softmax attention, [P,B,H,T,K], of this device's queries to the keys of all devices."""
    return _forward(q_PBHTK, kv_PCBHSK)[0]


def _send_to_next(x: Any) -> Any:
    """Send to the next device of the ring, and receive from the previous one."""
    size = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(device, (device + 1) % size) for device in range(size)])


def _same_chunk(hop: Array | int) -> Array:
    """The chunk, early or late, whose queries attend to the same chunk of the keys that arrived after `hop` hops.

    Early queries attend to early keys of a device before this one, late queries to late keys of a device after it.
    """
    return jnp.where(hop > lax.axis_index(AXIS), LATE, EARLY)


def _chunk(arrays: Any, chunk: Array | int) -> Any:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, chunk, keepdims=False), arrays)


def _set_chunk(arrays: Any, values: Any, chunk: Array | int) -> Any:
    return jax.tree.map(lambda x, value: lax.dynamic_update_index_in_dim(x, value, chunk, 0), arrays, values)


def _add_to_chunk(x: Array, more: Array, chunk: Array | int) -> Array:
    return _set_chunk(x, (_chunk(x, chunk) + more).astype(x.dtype), chunk)


def _forward(q_PBHTK: Array, kv_PCBHSK: Array) -> tuple[Array, tuple[Array, ...]]:
    """Send keys and values to the next device while this one computes with them, except after the last hop."""

    def attend(mixes: Mix, kv_PCBHSK: Array, query: Array | int, key: Array | int) -> Mix:
        block = mix(_chunk(q_PBHTK, query), *_chunk(kv_PCBHSK, key))
        return _set_chunk(mixes, merged(_chunk(mixes, query), block), query)

    def compute(mixes: Mix, kv_PCBHSK: Array, hop: Array | int) -> Mix:
        same = _same_chunk(hop)
        return attend(attend(mixes, kv_PCBHSK, LATE, EARLY), kv_PCBHSK, same, same)

    def tick(carry: tuple[Mix, Array], hop: Array) -> tuple[tuple[Mix, Array], None]:
        mixes, kv_PCBHSK = carry
        return (compute(mixes, kv_PCBHSK, hop), _send_to_next(kv_PCBHSK)), None

    size, arrived_PCBHSK = lax.axis_size(AXIS), _send_to_next(kv_PCBHSK)
    own = jax.vmap(partial(mix, causal=True))(q_PBHTK, kv_PCBHSK[:, 0], kv_PCBHSK[:, 1])
    own = attend(own, kv_PCBHSK, LATE, EARLY)
    (mixes, arrived_PCBHSK), _ = lax.scan(tick, (own, arrived_PCBHSK), jnp.arange(1, size - 1))
    mixed_PBHTK, log_total_PBHT1 = checkpoint_name(
        normalised(compute(mixes, arrived_PCBHSK, size - 1), q_PBHTK.dtype), KEPT
    )
    return mixed_PBHTK, (q_PBHTK, kv_PCBHSK, mixed_PBHTK, log_total_PBHT1)


def _backward(residuals: tuple[Array, ...], dmixed_PBHTK: Array) -> tuple[Array, Array]:
    """Accumulate gradients of keys and values around the ring; the last hop returns them to their owner.

    They travel in the compute dtype and arrive while the device computes its contribution. Gradients of queries stay on
    their device and are accumulated in float32.
    """
    q_PBHTK, kv_PCBHSK, mixed_PBHTK, log_total_PBHT1 = residuals
    queries = Queries(q_PBHTK, dmixed_PBHTK, log_total_PBHT1, delta(mixed_PBHTK, dmixed_PBHTK))

    def add_gradients(grads: Grads, kv_PCBHSK: Array, query: Array | int, key: Array | int) -> Grads:
        dq_PBHTK, dkv_PCBHSK = grads
        dq_BHTK, *dkv_CBHSK = gradients(_chunk(queries, query), *_chunk(kv_PCBHSK, key))
        return _add_to_chunk(dq_PBHTK, dq_BHTK, query), _add_to_chunk(dkv_PCBHSK, jnp.stack(dkv_CBHSK), key)

    def compute(grads: Grads, kv_PCBHSK: Array, hop: Array | int) -> Grads:
        same, arrived = _same_chunk(hop), (grads[0], _send_to_next(grads[1]))
        return add_gradients(add_gradients(arrived, kv_PCBHSK, LATE, EARLY), kv_PCBHSK, same, same)

    def tick(carry: tuple[Grads, Array], hop: Array) -> tuple[tuple[Grads, Array], None]:
        grads, kv_PCBHSK = carry
        return (compute(grads, kv_PCBHSK, hop), _send_to_next(kv_PCBHSK)), None

    size, arrived_PCBHSK = lax.axis_size(AXIS), _send_to_next(kv_PCBHSK)
    dq_PBHTK, *dkv = jax.vmap(partial(gradients, causal=True))(queries, kv_PCBHSK[:, 0], kv_PCBHSK[:, 1])
    own = add_gradients((dq_PBHTK, jnp.stack(dkv, 1).astype(kv_PCBHSK.dtype)), kv_PCBHSK, LATE, EARLY)
    (grads, arrived_PCBHSK), _ = lax.scan(tick, (own, arrived_PCBHSK), jnp.arange(1, size - 1))
    dq_PBHTK, dkv_PCBHSK = compute(grads, arrived_PCBHSK, size - 1)
    return dq_PBHTK.astype(q_PBHTK.dtype), _send_to_next(dkv_PCBHSK)


attend_around.defvjp(_forward, _backward)
