"""Attention of a chunk's queries to a chunk's keys, by the kernel that fits: what a ring adds up.

A fused kernel gives the normalised output and the log-sum-exp of the scores. This is a `Mix` whose maximum is the
log-sum-exp and whose sum is one, so `merged` adds up chunks of any kernel.

Dims: B batch, T query tokens, S key tokens, H heads of queries, J heads of keys and values, K head dim.
"""

from types import ModuleType

import jax.numpy as jnp
from jaxtyping import Array

from strategies.model.attention import blocks, cudnn, splash
from strategies.model.attention.blocks import Mix, Queries

FUSED: dict[str, ModuleType] = {"cudnn": cudnn, "splash": splash}
"""Modules with `attended` and `gradients` of a chunk, by the kind of kernel."""


def mix(kind: str, q_BHTK: Array, k_BJSK: Array, v_BJSK: Array, causal: bool = False) -> Mix:
    """Attention of a chunk's queries to its keys; the other arguments are those of `blocks.mix`.

    `kind` is "cudnn", "splash" or "xla", as `kernel_for` names it.
    """
    if kind == "xla":
        return blocks.mix(q_BHTK, k_BJSK, v_BJSK, causal)
    mixed_BHTK, log_total_BHT = FUSED[kind].attended(q_BHTK, k_BJSK, v_BJSK, causal=causal)
    log_total_BHT1 = log_total_BHT[..., None]
    return Mix(mixed_BHTK.astype(jnp.float32), log_total_BHT1, jnp.ones_like(log_total_BHT1))


def gradients(
    kind: str, queries: Queries, mixed_BHTK: Array, k_BJSK: Array, v_BJSK: Array, causal: bool = False
) -> tuple[Array, ...]:
    """A chunk's contributions to dQ, dK and dV, in float32. `mixed` is the output of attention to all keys.

    The other arguments are those of `mix` and of `blocks.gradients`.
    """
    if kind == "xla":
        return blocks.gradients(queries, k_BJSK, v_BJSK, causal)
    known = mixed_BHTK, queries.log_total_BHT1[..., 0], queries.dmixed_BHTK
    grads = FUSED[kind].gradients(queries.q_BHTK, k_BJSK, v_BJSK, *known, causal=causal)
    return tuple(grad.astype(jnp.float32) for grad in grads)
