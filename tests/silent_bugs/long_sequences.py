"""Sequences split over devices: positions, masks, keys and sinks are of another chunk, or not there."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from strategies.context import ulysses_attention
from strategies.core.plan import Plan
from strategies.model.attention import ring
from strategies.step import Implementation
from tests.silent_bugs.changed_implementations import Plant, changed_hooks, patched
from tests.silent_bugs.museum import GPT_OSS, QWEN3, Bug


def from_zero(own_context: Any) -> Any:
    """`Hooks.own_context` that gives each device the positions of the first tokens. Tokens are of its own shard."""

    def own(x: Any, dim: int) -> Any:
        shard = own_context(x, dim)
        is_positions = x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.integer)
        return 0 * shard + jnp.arange(len(shard)) if is_positions else shard

    return own


def contiguous_positions(own_context: Any) -> Any:
    """`Hooks.own_context` with positions of a contiguous shard, whose tokens are an early and a late chunk."""

    def own(x: Any, dim: int) -> Any:
        shard = own_context(x, dim)
        is_positions = x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.integer)
        first = lax.axis_index("context") * len(shard)
        return 0 * shard + first + jnp.arange(len(shard)) if is_positions else shard

    return own


def without_window(attend: Any) -> Any:
    """`Hooks.attend` that ignores the window."""
    return lambda qkv, kind, reach: ulysses_attention(qkv, kind, None)


def without_sinks(attend: Any) -> Any:
    """`Hooks.attend` that ignores the sinks."""
    return lambda qkv, kind, reach: attend(replace(qkv, sink_H=None), kind, reach)


def traced_with(ring_backward: Any = None, **functions: Any) -> Plant:
    """Replace functions of ring.py while loss and gradients are traced."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def differentiate(*inputs: Any) -> Any:
            with patched(ring, "_before", functions.get("before", ring._before)):
                ring.attend_around.defvjp(ring._forward, ring_backward or ring._backward)
                try:
                    return sound.differentiate(*inputs)
                finally:
                    ring.attend_around.defvjp(ring._forward, ring._backward)

        return replace(sound, differentiate=differentiate)

    return plant


def masked_by_place(hop: Any) -> Any:
    """`ring._before` with the places of chunks in the ring, as if all were in the order of the sequence."""
    return hop < lax.axis_index("context")


def backward_with_own_keys(form: Any, kind: str, residuals: Any, dmixed: Any) -> Any:
    """`ring._backward` whose keys do not travel: each hop takes gradients against the device's own."""
    keys, send = residuals[1], ring._send_to_next

    def send_gradients(x: Any) -> Any:
        return x if x is keys else send(x)

    with patched(ring, "_send_to_next", send_gradients):
        return ring._backward(form, kind, residuals, dmixed)


BUGS = [
    Bug(
        "positions-from-zero",
        "https://github.com/deepspeedai/Megatron-DeepSpeed/pull/392",
        "Rotary positions were not those of a rank's own part of the sequence.",
        "rotary positions of all devices but the first: they begin at 0",
        "loss",
        "context",
        "context=2",
        changed_hooks(own_context=from_zero),
        QWEN3,
    ),
    Bug(
        "positions-in-order",
        "https://github.com/NVIDIA/Megatron-LM/pull/1612",
        "Positions were sliced along another dim than tokens, which ranks hold as an early and a late chunk.",
        "rotary positions: those of the contiguous shard",
        "loss",
        "context",
        "context=2",
        changed_hooks(own_context=contiguous_positions),
        QWEN3,
    ),
    Bug(
        "window-ignored",
        "https://github.com/huggingface/accelerate/pull/4177",
        "Context parallelism replaced every mask by a causal one, so that layers with a window attended to all tokens.",
        "attention: to tokens outside of the window",
        "loss",
        "context",
        "context=2",
        changed_hooks(attend=without_window),
        {"attention_window": 4},
    ),
    Bug(
        "chunks-masked-by-place",
        "https://github.com/AI-Hypercomputer/maxtext/pull/4364",
        "Chunk and window masks followed the order in which ranks hold chunks, and not that of the sequence.",
        "attention: early and late chunks are taken for each other",
        "loss",
        "context",
        "context=2",
        traced_with(before=masked_by_place),
    ),
    Bug(
        "ring-with-stale-keys",
        "https://github.com/huggingface/diffusers/issues/14265",
        "The backward pass of ring attention took the keys of the first hop in all hops; the forward pass was right.",
        "gradients of queries, keys and values: against the keys of another chunk",
        "blocks.attention.qkv",
        "context",
        "context=2",
        traced_with(ring_backward=backward_with_own_keys),
    ),
    Bug(
        "sinks-ignored",
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/3397",
        "Context parallelism dropped the sinks of attention, which its functions swallowed as further arguments.",
        "attention, and the gradient of the sinks: they are missing",
        "attention",
        "context",
        "context=2",
        changed_hooks(attend=without_sinks),
        GPT_OSS,
    ),
]
