"""Attention by fused kernels over whole sequences, and by any kernel over one chunk of queries and keys in a ring.

A fused kernel returns the normalised output and the log-sum-exp of the scores. This is a `Mix` whose maximum is the
log-sum-exp and whose sum is one, so `merged` adds up chunks of any kernel.

Dims: B batch, T query tokens, S key tokens, H query heads, J KV heads, K head dim, A = H x K.
"""

from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.model.attention import cudnn, dense, splash
from strategies.model.attention.dense import Mix, Queries, delta, normalised, sink_gradient
from strategies.model.attention.qkv import ATTENDED, QKV
from strategies.model.attention.reach import Reach

FUSED: dict[str, ModuleType] = {"cudnn": cudnn, "splash": splash}
"""By kernel, the module with `attended` and `gradients` of a chunk."""


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def attend_fused(qkv: QKV, kind: str, reach: Reach | None = None) -> Float[Array, "B T A"]:
    """Causal softmax attention of whole sequences by a fused kernel, dense or with a window."""
    return _forward(qkv, kind, reach)[0]


def _forward(qkv: QKV, kind: str, reach: Reach | None) -> tuple[Array, tuple[QKV, Array, Array]]:
    mixed_BHTK, log_total_BHT = FUSED[kind].attended(*qkv.heads_first, reach)
    if qkv.sink_H is not None:
        mix = _mix_of(mixed_BHTK, log_total_BHT)
        mixed_BHTK, log_total_BHT1 = normalised(mix, mixed_BHTK.dtype, qkv.sink_H)
        log_total_BHT = log_total_BHT1[..., 0]
    mixed_BTA = mixed_BHTK.swapaxes(1, 2).reshape(len(mixed_BHTK), qkv.tokens, -1)
    mixed_BTA, log_total_BHT = checkpoint_name((mixed_BTA, log_total_BHT), ATTENDED)
    return mixed_BTA, (qkv, mixed_BTA, log_total_BHT)


def _backward(kind: str, reach: Reach | None, residuals: tuple[QKV, Array, Array], dmixed_BTA: Array) -> tuple[QKV]:
    qkv, mixed_BTA, log_total_BHT = residuals
    mixed_BHTK, dmixed_BHTK = (qkv.heads_of(x_BTA).swapaxes(1, 2) for x_BTA in (mixed_BTA, dmixed_BTA))
    grads = FUSED[kind].gradients(*qkv.heads_first, mixed_BHTK, log_total_BHT, dmixed_BHTK, reach)
    delta_BHT1 = delta(mixed_BHTK, dmixed_BHTK)  # unused without sinks; the compiler drops it
    return (qkv.with_gradients(*grads, dsink_H=sink_gradient(qkv.sink_H, log_total_BHT[..., None], delta_BHT1)),)


attend_fused.defvjp(_forward, _backward)


def _mix_of(mixed_BHTK: Array, log_total_BHT: Array) -> Mix:
    log_total_BHT1 = log_total_BHT[..., None]
    return Mix(mixed_BHTK.astype(jnp.float32), log_total_BHT1, jnp.ones_like(log_total_BHT1))


def mix(kind: str, q_BHTK: Array, k_BJSK: Array, v_BJSK: Array, causal: bool = False) -> Mix:
    """Attention of a chunk's queries to its keys by "cudnn", "splash" or "xla"; otherwise like `dense.mix`."""
    if kind == "xla":
        return dense.mix(q_BHTK, k_BJSK, v_BJSK, causal)
    return _mix_of(*FUSED[kind].attended(q_BHTK, k_BJSK, v_BJSK, causal=causal))


def gradients(
    kind: str, queries: Queries, mixed_BHTK: Array, k_BJSK: Array, v_BJSK: Array, causal: bool = False
) -> tuple[Array, ...]:
    """A chunk's contributions to dQ, dK and dV, in float32. `mixed` is the attention output over all keys."""
    if kind == "xla":
        return dense.gradients(queries, k_BJSK, v_BJSK, causal)
    known = mixed_BHTK, queries.log_total_BHT1[..., 0], queries.dmixed_BHTK
    grads = FUSED[kind].gradients(queries.q_BHTK, k_BJSK, v_BJSK, *known, causal=causal)
    return tuple(grad.astype(jnp.float32) for grad in grads)
