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

What travels are keys and values, or latents from which each device computes them on arrival (latent.py). Gradients of
what travels have its size.

Dims: B batch, T query tokens of a chunk, S key tokens of a chunk, H query heads, J KV heads, K head dim, P = 2 (early,
late), C = 2 (key, value), A = H x K. What a device sends of its tokens is `sent_P`, with dims by its form.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.attention.chunk import gradients, mix
from strategies.model.attention.dense import Mix, Queries, delta, merged, normalised, sink_gradient
from strategies.model.attention.latent import Attended, Expansion, LatentQKV
from strategies.model.attention.qkv import ATTENDED, QKV, in_a_row

AXIS = "context"
EARLY, LATE = 0, 1
Mixes = tuple[Mix, Mix]
"""Attention of the early and the late queries."""
Grads = tuple[Array, Any, Any]
"""Gradients of queries, of weights, and of what travels."""


def zigzag(x: Array, dim: int) -> Array:
    """This device's early and late chunk of an array of whole sequences, whose token dim is `dim`."""
    device, chunks = lax.axis_index(AXIS), 2 * lax.axis_size(AXIS)
    size = x.shape[dim] // chunks
    return jnp.concatenate(
        [lax.dynamic_slice_in_dim(x, chunk * size, size, dim) for chunk in (device, chunks - 1 - device)], dim
    )


class Sent(NamedTuple):
    """Keys and values travel as they are: `sent_P` is [P,C,B,J,S,K], or a pair of [P,B,J,S,K] and [P,B,J,S,V]."""

    together: bool

    def keys(self, weights: None, sent_P: Any) -> tuple[Array, Array]:
        """Keys [P,B,J,S,K] and values [P,B,J,S,V] of what arrived."""
        return (sent_P[:, 0], sent_P[:, 1]) if self.together else sent_P

    def gradients(self, weights: None, sent_P: Any, dk: Array, dv: Array) -> tuple[None, Any]:
        """Gradients of weights and of what was sent, from those of keys and values."""
        return None, jnp.stack([dk, dv], 1) if self.together else (dk, dv)


def ring_attention(qkv: Attended, kind: str = "xla", reach: None = None) -> Float[Array, "B 2*T A"]:
    """Causal attention of this device's tokens, as `zigzag` selects them, to all earlier tokens on any device.

    Attention is dense, over at least two devices; arguments as for `causal_attention`. On CPUs a permute waits for all
    devices of the mesh, including other rings, so do not call this in a branch that only some devices take.
    """
    if isinstance(qkv, QKV):
        batch, tokens, groups, _ = qkv.qkv_BTCE.shape
        qkv_BPTCJK = qkv.qkv_BTCE.reshape(batch, 2, tokens // 2, groups, -1, qkv.head_dim)
        qkv_PCBJTK = qkv_BPTCJK.transpose(1, 3, 0, 4, 2, 5)
        q_PBHTK = in_a_row([qkv_PCBJTK[:, group] for group in range(groups - 2)], 2)
        form, weights, sent_P = Sent(together=True), None, qkv_PCBJTK[:, -2:]
    elif isinstance(qkv, LatentQKV):
        q_PBHTK, form, weights = _by_chunk(qkv.q_BTHK), qkv.expansion, qkv.weights
        latent_BTL = qkv.latent_BTL
        sent_P = jnp.stack(jnp.split(latent_BTL, 2, 1))
    else:
        q_PBHTK, *kv = (_by_chunk(x) for x in (qkv.q_BTHK, qkv.k_BTHK, qkv.v_BTHV))
        form, weights, sent_P = Sent(together=False), None, tuple(kv)
    mixed_PBHTK: Any = attend_around(q_PBHTK, sent_P, weights, qkv.sink_H, form, kind)
    return mixed_PBHTK.transpose(1, 0, 3, 2, 4).reshape(q_PBHTK.shape[1], qkv.tokens, -1)


def _by_chunk(x_BTHK: Array) -> Float[Array, "P B H T K"]:
    return jnp.stack(jnp.split(x_BTHK, 2, 1)).swapaxes(2, 3)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def attend_around(
    q_PBHTK: Array, sent_P: Any, weights: Any, sink_H: Array | None, form: Sent | Expansion, kind: str
) -> Array:
    """Softmax attention [P,B,H,T,K] of this device's queries to the keys of all devices. `kind` names the kernel."""
    return _forward(q_PBHTK, sent_P, weights, sink_H, form, kind)[0]


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


def _forward(
    q_PBHTK: Array, sent_P: Any, weights: Any, sink_H: Array | None, form: Sent | Expansion, kind: str
) -> tuple[Array, tuple[Any, ...]]:
    """Send keys and values to the next device while this one computes with them, except after the last hop."""
    q_BHTK = q_PBHTK[LATE]

    def compute(mixes: Mixes, sent_P: Any, hop: Array | int) -> Mixes:
        (early, late), before, kv_P = mixes, _before(hop), form.keys(weights, sent_P)
        late = merged(late, mix(kind, q_BHTK, *_at(kv_P, EARLY)))
        same = mix(kind, _chunk(q_PBHTK, before), *_chunk(kv_P, before))
        return merged(early, _only(same, before)), merged(late, _only(same, ~before))

    def tick(carry: tuple[Mixes, Any], hop: Array) -> tuple[tuple[Mixes, Any], None]:
        mixes, sent_P = carry
        return (compute(mixes, sent_P, hop), _send_to_next(sent_P)), None

    size, arrived_P, kv_P = lax.axis_size(AXIS), _send_to_next(sent_P), form.keys(weights, sent_P)
    early, late = (mix(kind, q_PBHTK[chunk], *_at(kv_P, chunk), causal=True) for chunk in (EARLY, LATE))
    own = early, merged(late, mix(kind, q_BHTK, *_at(kv_P, EARLY)))
    (mixes, arrived_P), _ = lax.scan(tick, (own, arrived_P), jnp.arange(1, size - 1))
    mixes = compute(mixes, arrived_P, size - 1)
    mixed_PBHTK, log_total_PBHT1 = jax.tree.map(
        lambda *chunks: jnp.stack(chunks), *(normalised(each, q_PBHTK.dtype, sink_H) for each in mixes)
    )
    mixed_PBHTK, log_total_PBHT1 = checkpoint_name((mixed_PBHTK, log_total_PBHT1), ATTENDED)
    return mixed_PBHTK, (q_PBHTK, sent_P, weights, sink_H, mixed_PBHTK, log_total_PBHT1)


def _backward(
    form: Sent | Expansion, kind: str, residuals: tuple[Any, ...], dmixed_PBHTK: Array
) -> tuple[Array, Any, Any, Array | None]:
    """Accumulate gradients of what travels around the ring; the last hop returns them to their owner.

    They travel in the compute dtype and arrive while the device computes its contribution. Gradients of queries and
    weights stay on their device and are accumulated in float32.
    """
    q_PBHTK, sent_P, weights, sink_H, mixed_PBHTK, log_total_PBHT1 = residuals
    delta_PBHT1 = delta(mixed_PBHTK, dmixed_PBHTK)
    answered = Queries(q_PBHTK, dmixed_PBHTK, log_total_PBHT1, delta_PBHT1), mixed_PBHTK
    early, late = (jax.tree.map(itemgetter(chunk), answered) for chunk in (EARLY, LATE))

    def compute(grads: Grads, sent_P: Any, hop: Array | int) -> Grads:
        (dq_PBHTK, dweights, dsent_P), before = (*grads[:2], _send_to_next(grads[2])), _before(hop)
        kv_P = form.keys(weights, sent_P)
        across = gradients(kind, *late, *_at(kv_P, EARLY))
        same = gradients(kind, *_chunk(answered, before), *_chunk(kv_P, before))
        of_early, of_late = ([jnp.where(where, x, 0) for x in same] for where in (before, ~before))
        more_dq_PBHTK, *dkv = _summed(of_early, across, of_late)
        more = form.gradients(weights, sent_P, *dkv)
        return dq_PBHTK + more_dq_PBHTK, _added(dweights, more[0]), _like(sent_P, _added(dsent_P, more[1]))

    def tick(carry: tuple[Grads, Any], hop: Array) -> tuple[tuple[Grads, Any], None]:
        grads, sent_P = carry
        return (compute(grads, sent_P, hop), _send_to_next(sent_P)), None

    size, arrived_P, kv_P = lax.axis_size(AXIS), _send_to_next(sent_P), form.keys(weights, sent_P)
    dq_PBHTK, *dkv = _summed(
        gradients(kind, *early, *_at(kv_P, EARLY), causal=True),
        gradients(kind, *late, *_at(kv_P, EARLY)),
        gradients(kind, *late, *_at(kv_P, LATE), causal=True),
    )
    dweights, dsent_P = form.gradients(weights, sent_P, *dkv)
    own = dq_PBHTK, jax.tree.map(lambda x: x.astype(jnp.float32), dweights), _like(sent_P, dsent_P)
    (grads, arrived_P), _ = lax.scan(tick, (own, arrived_P), jnp.arange(1, size - 1))
    dq_PBHTK, dweights, dsent_P = compute(grads, arrived_P, size - 1)
    dsink_H = sink_gradient(sink_H, log_total_PBHT1, delta_PBHT1)
    return dq_PBHTK.astype(q_PBHTK.dtype), _send_to_next(dsent_P), _like(weights, dweights), dsink_H


def _at(arrays: tuple[Array, Array], chunk: int) -> Any:
    return arrays[0][chunk], arrays[1][chunk]


def _added(sums: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, sums, more)


def _like(arrays: Any, others: Any) -> Any:
    """The others in the dtypes of the arrays."""
    return jax.tree.map(lambda array, other: other.astype(array.dtype), arrays, others)


def _summed(early: Sequence[Array], across: Sequence[Array], late: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Sum the gradients of the (query, key) chunk pairs (early, early), (late, early) and (late, late)."""
    dk_P, dv_P = (jnp.stack([early[i] + across[i], late[i]]) for i in (1, 2))
    return jnp.stack([early[0], across[0] + late[0]]), dk_P, dv_P


attend_around.defvjp(_forward, _backward)
