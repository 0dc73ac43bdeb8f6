"""Context parallel: each device holds all weights, and a shard of the tokens of each sequence.

    dW[D,F] -all_reduce(context)-> dW[D,F], each weight, once a step, in `reduce_dtype`: after all
        microbatches, or with `reduce="layer"` each layer's in the backward loop (core/layer_reduction.py)

Only attention needs other devices' tokens. With `context_attention="ring"` keys and values travel around a ring of
devices, and in the backward pass their gradients travel with them (model/attention/ring.py):

    k, v[B,T_context,A] -permute(context)-> the next device, n-1 times a layer forward, and n-1 times again backward
    dk, dv[B,T_context,A] -permute(context)-> the next device, n times a layer backward; the last hop ends at the owner

With `context_attention="ulysses"` attention is split over its heads instead of over tokens (Jacobs et al. 2023,
"DeepSpeed Ulysses", section 3):

    q, k, v[B,T_context,A] -all_to_all(context)-> q, k, v[B,T,A_context], once a layer forward
    mixed[B,T,A_context] -all_to_all(context)-> mixed[B,T_context,A], once a layer forward
    each is the transpose of the other: once and once a layer backward

If n does not divide the number J of KV heads, each is copied lcm(J, n)/J times before it is sent; the transpose of the
copy sums the gradients of the copies.

For P parameters, L layers and A features of all heads on n devices a device sends 2 P (n-1)/n elements of gradients a
step, and the loss. In the compute dtype it sends (3n-2) 2 L B T A / n elements with a ring, or 8 L B T A (n-1)/n^2
elements with Ulysses. With `remat="full"` the ring has n-2 more hops of k and v, but none if n is 3, and Ulysses sends
12 L instead of 8 L. The ring computes (2n+1)/4n of the full square of attention scores, because it skips blocks that
the causal mask hides. Ulysses computes the same number of scores as one device.

With `attention_window=W` a ring sends only the keys and values that the window reaches. Shards are contiguous, so these
are the last W-1 tokens before a device's own, or all tokens before them if they are fewer:

    k, v[B,W-1,A] -permute(context)-> the next device: in one hop if W-1 <= T/n, otherwise in ceil((W-1) n/T) hops that
        pass on what the next device needs; once a layer forward
    dk, dv[B,W-1,A] -permute(context)-> the previous device, the transpose: once a layer backward

A device then sends 4 L B (W-1) A elements a step instead of (3n-2) 2 L B T A / n, and 6 L with `remat="full"`. With
`full_attention_every` some layers have no window, so tokens are in the zigzag order of the ring: each device has an
early and a late chunk, and receives the W-1 tokens before both: twice the elements.

With latent attention and `context_payload="latent"`, C + R latents and rotary features of a token take the place of its
keys and values, 2 A:

    latents[B,T_context,C+R] -permute(context)-> the next device, as k and v; their gradients, as dk and dv
    latents[B,T_context,C+R] -all_gather(context)-> latents[B,T,C+R] with Ulysses, once a layer forward; its transpose,
        a reduce-scatter, backward; q and the result are exchanged as above

A window does not change what Ulysses sends. A stride (`attention_stride`) reaches tokens of all devices, so it has no
ring, and "auto" is Ulysses.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.core.axis import Axis
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan
from strategies.core.share import Share, attention_shares
from strategies.core.traffic import Traffic, traffic
from strategies.core.ulysses import contiguous, ulysses_attention
from strategies.infeasible import Infeasible, WrongSize, divisors, legal, require_divides
from strategies.model.attention import (
    QKV,
    Reach,
    attend_sparse,
    kernel_for,
    ring_attention,
    strided,
    zigzag,
)
from strategies.model.attention.ring import AXIS as RING
from strategies.model.experts import require_groups
from strategies.model.hooks import Hooks
from strategies.model.layers import after
from strategies.model.remat import KEPT
from strategies.step import Implementation
from strategies.strategy import Strategy


def window_attention(qkv: QKV, kind: str, reach: Reach) -> Float[Array, "B t A"]:
    """Windowed attention of this device's contiguous shard of the tokens, over at least two devices.

    Arguments are as for `causal_attention`; t is T_context. `kind` is "xla", because a window has no fused kernel here.
    """
    return attend_sparse(qkv, received_before(qkv.qkv_BTCE[:, :, -2:], reach), reach, RING)


def received_before(kv_BTCE: Array, reach: Reach) -> Array | None:
    """Keys and values of the preceding tokens that this device's window reaches; None if the window is one token.

    They are residuals, because recomputation would communicate again. The first devices of the axis receive zeros in
    place of tokens before the first one.
    """
    devices, size = lax.axis_size(RING), kv_BTCE.shape[1]
    left, arrived, parts = reach.earlier(devices * size, devices), kv_BTCE, []
    while left:
        to_next = [(device, device + 1) for device in range(devices - 1)]
        arrived = checkpoint_name(lax.ppermute(arrived[:, -min(left, size) :], RING, to_next), KEPT)
        parts.insert(0, arrived)
        left -= arrived.shape[1]
    return jnp.concatenate(parts, 1) if parts else None


def zigzag_attention(qkv: Any, kind: str, reach: Reach | None) -> Float[Array, "B t A"]:
    """Attention of this device's early and late chunk of the tokens: around the ring, or with a window."""
    if reach is None:
        return ring_attention(qkv, kind)
    early, late = (replace(qkv, qkv_BTCE=half_BTCE) for half_BTCE in jnp.split(qkv.qkv_BTCE, 2, 1))
    before = received_before_chunks(early.qkv_BTCE[:, :, -2:], late.qkv_BTCE[:, :, -2:], reach.window - 1)
    mixed: Any = attend_sparse(early, before[0], reach, RING), attend_sparse(late, before[1], reach, None)
    return jnp.concatenate(mixed, 1)


def received_before_chunks(early_BTCE: Array, late_BTCE: Array, count: int) -> tuple[Array | None, Array | None]:
    """Keys and values of the `count` tokens before each chunk, at most one chunk; None if `count` is 0.

    The previous device sends those before the early chunk, the next device those before the late chunk. The last device
    has both chunks in the middle of a sequence.
    """
    if not count:
        return None, None
    devices, early_BTCE, late_BTCE = lax.axis_size(RING), early_BTCE[:, -count:], late_BTCE[:, -count:]
    upwards = [(device, device + 1) for device in range(devices - 1)]
    before_early = checkpoint_name(lax.ppermute(early_BTCE, RING, upwards), KEPT)
    late_BTCE = after(before_early, late_BTCE)  # two concurrent exchanges could deadlock
    before_late = checkpoint_name(lax.ppermute(late_BTCE, RING, [(to, at) for at, to in upwards]), KEPT)
    return before_early, jnp.where(lax.axis_index(RING) == devices - 1, early_BTCE, before_late)


def resolve(plan: Plan) -> Mapping[str, Any]:
    """Resolve `reduce="auto"`, and `context_attention="auto"` to a ring or Ulysses.

    "auto" is Ulysses with pipeline stages or a stride; and with a fused kernel if the backend prefers it and the
    devices divide the heads, because it sends less than a ring. With a window a ring sends little, and is used.
    """
    config, train, size = plan.config, plan.train, plan.size(RING)
    attention = train.context_attention
    if attention == "auto":
        dense = plan.backend.prefers_all_to_all and not Reach.of(config)
        fused = dense and kernel_for(plan.backend, config, train) != "xla"
        divides = plan.held_config.key_features // plan.tensors // config.head_dim % size == 0
        windowed = config.latent_rank is not None and Reach.of(config) is not None
        ring = not plan.staged and not strided(config) and not windowed and not (fused and divides)
        attention = "ring" if ring else "ulysses"
    elif attention == "ring" and plan.staged:
        problem = f"ring attention does not work with pipeline={plan.stages}"
        raise Infeasible(f"{problem}: its permutes need all devices at the same time; use context_attention=ulysses")
    return {
        **resolve_reduce(plan),
        "context_attention": attention,
        "context_payload": _resolve_payload(plan, attention),
    }


def _resolve_payload(plan: Plan, attention: str) -> str:
    """What devices exchange, "auto" without latent attention. Ulysses gathers latents on each device."""
    payload, config = plan.train.context_payload, plan.config
    if config.latent_rank is None:
        if payload != "auto":
            raise Infeasible(f"context_payload={payload} is for models with latent attention; omit it")
        return payload
    expanded = (config.query_features + config.head_features) // plan.tensors
    latents = config.dim_sizes["latents_and_key"] * (plan.size(RING) if attention == "ulysses" else 1)
    fewer = "latent" if latents < expanded else "expanded"
    return fewer if payload == "auto" else payload


def require(plan: Plan) -> None:
    """Check that the context axis divides the tokens and, with Ulysses, the heads."""
    config, size, tensors = plan.config, plan.size(RING), plan.tensors
    if plan.train.context_attention == "ulysses":
        name = "heads" if tensors == 1 else "heads/tensor"
        require_divides("context", size, **{"sequence": config.sequence, name: config.heads // tensors})
    else:
        _require_ring(plan.share, size, config.heads // tensors)
    pieces = plan.share.pieces if plan.share.ring > 1 else size
    require_groups(config, config.sequence // pieces, f"consecutive tokens of a sequence on a device of context={size}")


def _require_ring(share: Share, size: int, heads: int) -> None:
    config, way_out = share.config, "use context_attention=ulysses"
    if heads % size:
        way_out = f"{legal(math.gcd(heads, config.sequence), 'context')} with context_attention=ulysses"
    if strided(config):
        problem = f"attention_stride={config.attention_stride} reaches tokens of all context={size} devices"
        raise Infeasible(f"{problem}, and has no ring; {way_out}")
    if share.zigzag and config.sequence % (2 * size):
        sizes = divisors(config.sequence // 2 if config.sequence % 2 == 0 else 1)
        raise WrongSize(f"2 x context={size} chunks do not divide sequence={config.sequence}", "context", sizes)
    if reach := Reach.of(config):
        if config.latent_rank is not None:
            problem = f"a ring with attention_window={reach.window} does not go with latent_rank={config.latent_rank}"
            raise Infeasible(f"{problem}; {way_out}")
        require_divides("context", size, sequence=config.sequence)
        if share.zigzag and reach.window > share.chunk:
            problem = f"attention_window={reach.window} is more than the {share.chunk} tokens of a chunk"
            raise Infeasible(f"{problem}, two for each of context={size} devices; {way_out}")
        if not reach.has_blocks(tokens := config.sequence // share.pieces):
            problem = f"no blocks of useful size for attention_window={reach.window} divide the {tokens} tokens"
            raise Infeasible(f"{problem} of a device; take a sequence with more divisors, or a smaller window")


def implement(plan: Plan) -> Implementation:
    """Attend to other devices' tokens. Other axes may also split heads or tokens."""
    ulysses = plan.train.context_attention == "ulysses"
    own = zigzag if plan.share.zigzag else contiguous
    # A ring whose shards are contiguous has a window.
    attend: Any = ulysses_attention if ulysses else zigzag_attention if plan.share.zigzag else window_attention

    def expanded(qkv: Any, *others: Any) -> Array:
        return attend(qkv.expanded, *others)

    return Implementation(
        Hooks(own_context=own, attend=expanded if plan.train.context_payload == "expanded" else attend)
    )


def exchanged_tokens(plan: Plan) -> Iterator[Traffic]:
    """Hops of keys, values and their gradients along a ring, or Ulysses' all-to-alls."""
    shares = attention_shares(plan.share)
    sent = plan.all_layers * sum(_exchanged(plan, share) for share in shares)
    sent += plan.recomputed_prefix_layers * sum(
        plan.tokens * _split_by_head(share) for share in shares
    )  # stages have no ring
    what, kind = ("tokens and heads", "all_to_all") if plan.ulysses else ("keys and values", "permute")
    yield from traffic(plan, what, kind, plan.placement.tokens, sent, dtype=plan.train.dtype)
    if plan.ulysses and plan.share.sends_latents:
        latents, times = len(shares) * plan.tokens * plan.share.latents, 1 if plan.train.remat != "full" else 2
        gathered = (times * plan.all_layers + plan.recomputed_prefix_layers) * latents
        summed = plan.all_layers * plan.size(*plan.placement.tokens) * latents
        term = partial(traffic, plan, "latents", axes=plan.placement.tokens, dtype=plan.train.dtype)
        yield from term("all_gather", elements=gathered)
        yield from term("reduce_scatter", elements=summed)


def _exchanged(plan: Plan, share: Share) -> int:
    """Elements sent in a step for one attention part of a layer."""
    devices, keeps_output = plan.size(*plan.placement.tokens), plan.train.remat != "full"
    if plan.ulysses:
        return (2 if keeps_output else 3) * plan.tokens * _split_by_head(share)
    if share.skipping:
        # Keys and values that the window reaches, and their gradients back; recomputation repeats the keys and values.
        return (2 if keeps_output else 3) * 2 * share.earlier_tokens * plan.train.microbatches * share.key_features
    # Recomputation repeats the hops in the ring's loop. The compiler merges the other hops with the backward pass's.
    again = devices - 2 if share.loops_ring and not keeps_output else 0
    features = share.latents if share.sends_latents else share.attended_kv_features
    return (2 * (devices - 1) + devices + again) * plan.tokens * features


def _split_by_head(share: Share) -> int:
    """Features of a token that Ulysses exchanges between tokens and heads."""
    return share.query_features + share.head_features if share.sends_latents else share.attended_features


AXIS = Axis(
    "context",
    tokens=True,
    options=("context_attention", "context_payload", "reduce", "reduce_dtype"),
    resolve=resolve,
    require=require,
    implement=implement,
    traffic=(exchanged_tokens,),
)
CONTEXT = Strategy("context", (AXIS,))
