"""Ring attention: causal attention to tokens that other devices along the mesh axis `context` hold.

Queries stay. Keys and values travel once around a ring of devices, and each device mixes what passes by, with a running
maximum and sum (Liu et al. 2023, "Ring Attention with Blockwise Transformers", section 3). The backward pass goes
around a second time: the gradients of keys and values travel with them, and each device adds its part.

Of the 2n chunks of a sequence on n devices, device i holds two (Llama Team 2024, "The Llama 3 Herd of Models", section
3.3.2): chunk i, its early one, and chunk 2n - 1 - i, its late one. Then causality leaves the same work to all of them:

    its own chunks         early to early and late to late, causal, and late to early
    those of device j < i  late to early, and early to early
    those of device j > i  late to early, and late to late

2n + 1 of its 4n pairs of chunks. The others, which causality masks out, are not computed.

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
"""Of queries, and of keys and values."""


def zigzag(x: Array, dim: int) -> Array:
    """Of an array of whole sequences, whose tokens are dim `dim`: this device's early chunk, then its late one."""
    device, chunks = lax.axis_index(AXIS), 2 * lax.axis_size(AXIS)
    size = x.shape[dim] // chunks
    return jnp.concatenate(
        [lax.dynamic_slice_in_dim(x, chunk * size, size, dim) for chunk in (device, chunks - 1 - device)], dim
    )


def ring_attention(qkv_BTCA: Float[Array, "B 2*T 3 A"], head_dim: int, kind: str = "xla") -> Float[Array, "B 2*T A"]:
    """As `causal_attention`, for the tokens that `zigzag` leaves here, to all before them on any device.

    For two devices or more. There is no fused kernel: `kind` is "xla". On CPUs a permutation waits for all devices of
    the mesh, those of other rings too: not to be called in a branch that some of them do not take.
    """
    batch, tokens, _, features = qkv_BTCA.shape
    qkv_BPTCHK = qkv_BTCA.reshape(batch, 2, tokens // 2, 3, -1, head_dim)
    qkv_PCBHTK = qkv_BPTCHK.transpose(1, 3, 0, 4, 2, 5)
    mixed_PBHTK = attend_around(qkv_PCBHTK[:, 0], qkv_PCBHTK[:, 1:])
    return mixed_PBHTK.transpose(1, 0, 3, 2, 4).reshape(batch, tokens, features)


@jax.custom_vjp
def attend_around(q_PBHTK: Array, kv_PCBHSK: Array) -> Array:
    """Softmax attention, [P,B,H,T,K], of this device's queries to the keys of all."""
    return _forward(q_PBHTK, kv_PCBHSK)[0]


def _hop(x: Any) -> Any:
    """To the next device, from the one before."""
    size = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(device, (device + 1) % size) for device in range(size)])


def _same(hop: Array | int) -> Array:
    """The chunk that attends to its like after so many hops: late to late when the keys are those of a later device."""
    return jnp.where(hop > lax.axis_index(AXIS), LATE, EARLY)


def _at(arrays: Any, chunk: Array | int) -> Any:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, chunk, keepdims=False), arrays)


def _put(arrays: Any, values: Any, chunk: Array | int) -> Any:
    return jax.tree.map(lambda x, value: lax.dynamic_update_index_in_dim(x, value, chunk, 0), arrays, values)


def _add(x: Array, more: Array, chunk: Array | int) -> Array:
    return _put(x, (_at(x, chunk) + more).astype(x.dtype), chunk)


def _forward(q_PBHTK: Array, kv_PCBHSK: Array) -> tuple[Array, tuple[Array, ...]]:
    """Keys and values go on to the next device while this one works on them; from the last they go nowhere."""

    def see(mixes: Mix, kv_PCBHSK: Array, query: Array | int, key: Array | int) -> Mix:
        seen = mix(_at(q_PBHTK, query), *_at(kv_PCBHSK, key))
        return _put(mixes, merged(_at(mixes, query), seen), query)

    def work(mixes: Mix, kv_PCBHSK: Array, hop: Array | int) -> Mix:
        same = _same(hop)
        return see(see(mixes, kv_PCBHSK, LATE, EARLY), kv_PCBHSK, same, same)

    def tick(carry: tuple[Mix, Array], hop: Array) -> tuple[tuple[Mix, Array], None]:
        mixes, kv_PCBHSK = carry
        return (work(mixes, kv_PCBHSK, hop), _hop(kv_PCBHSK)), None

    size, passing_PCBHSK = lax.axis_size(AXIS), _hop(kv_PCBHSK)
    own = jax.vmap(partial(mix, causal=True))(q_PBHTK, kv_PCBHSK[:, 0], kv_PCBHSK[:, 1])
    own = see(own, kv_PCBHSK, LATE, EARLY)
    (mixes, passing_PCBHSK), _ = lax.scan(tick, (own, passing_PCBHSK), jnp.arange(1, size - 1))
    mixed_PBHTK, log_total_PBHT1 = checkpoint_name(
        normalised(work(mixes, passing_PCBHSK, size - 1), q_PBHTK.dtype), KEPT
    )
    return mixed_PBHTK, (q_PBHTK, kv_PCBHSK, mixed_PBHTK, log_total_PBHT1)


def _backward(kept: tuple[Array, ...], dmixed_PBHTK: Array) -> tuple[Array, Array]:
    """Each device adds its part to the gradients that arrive while it works, and sends them on, at last home.

    They travel in the compute dtype; those of the queries, which stay, are added up in float32.
    """
    q_PBHTK, kv_PCBHSK, mixed_PBHTK, log_total_PBHT1 = kept
    queries = Queries(q_PBHTK, dmixed_PBHTK, log_total_PBHT1, delta(mixed_PBHTK, dmixed_PBHTK))

    def learn(grads: Grads, kv_PCBHSK: Array, query: Array | int, key: Array | int) -> Grads:
        dq_PBHTK, dkv_PCBHSK = grads
        dq_BHTK, *dkv_CBHSK = gradients(_at(queries, query), *_at(kv_PCBHSK, key))
        return _add(dq_PBHTK, dq_BHTK, query), _add(dkv_PCBHSK, jnp.stack(dkv_CBHSK), key)

    def work(grads: Grads, kv_PCBHSK: Array, hop: Array | int) -> Grads:
        same, arrived = _same(hop), (grads[0], _hop(grads[1]))
        return learn(learn(arrived, kv_PCBHSK, LATE, EARLY), kv_PCBHSK, same, same)

    def tick(carry: tuple[Grads, Array], hop: Array) -> tuple[tuple[Grads, Array], None]:
        grads, kv_PCBHSK = carry
        return (work(grads, kv_PCBHSK, hop), _hop(kv_PCBHSK)), None

    size, passing_PCBHSK = lax.axis_size(AXIS), _hop(kv_PCBHSK)
    dq_PBHTK, *dkv = jax.vmap(partial(gradients, causal=True))(queries, kv_PCBHSK[:, 0], kv_PCBHSK[:, 1])
    own = learn((dq_PBHTK, jnp.stack(dkv, 1).astype(kv_PCBHSK.dtype)), kv_PCBHSK, LATE, EARLY)
    (grads, passing_PCBHSK), _ = lax.scan(tick, (own, passing_PCBHSK), jnp.arange(1, size - 1))
    dq_PBHTK, dkv_PCBHSK = work(grads, passing_PCBHSK, size - 1)
    return dq_PBHTK.astype(q_PBHTK.dtype), _hop(dkv_PCBHSK)


attend_around.defvjp(_forward, _backward)
