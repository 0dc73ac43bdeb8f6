"""Ulysses: attention over sequences whose tokens are split over `context`, split over its heads instead (Jacobs et al.
2023, "DeepSpeed Ulysses", section 3). context.py says what is sent.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.core.shards import all_gather
from strategies.model.attention import QKV, Attended, HeadsQKV, LatentQKV, Reach, causal_attention
from strategies.model.attention.ring import AXIS
from strategies.model.remat import KEPT


def contiguous(x: Array, dim: int) -> Array:
    """This device's contiguous shard of an array of whole sequences, whose token dim is `dim`."""
    size = x.shape[dim] // lax.axis_size(AXIS)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(AXIS) * size, size, dim)


def ulysses_attention(qkv: Attended, kind: str, reach: Reach | None = None) -> Float[Array, "B t A"]:
    """Causal attention of this device's contiguous shard of the tokens to all earlier tokens.

    Each device computes some heads for all tokens: on n devices H/n query heads and the J/n KV heads that they attend
    to. If n does not divide J, several devices have the same KV head, which is replicated before it is sent. The
    results of both all-to-alls are residuals, because recomputation would communicate again. Arguments are as for
    `causal_attention`; t is T_context.
    """
    all_to_all = partial(lax.all_to_all, axis_name=AXIS, tiled=True)
    if not isinstance(qkv, QKV):
        qkv = _of_own_heads(qkv, all_to_all)
        mixed_BTA = causal_attention(qkv, kind, reach)
        return checkpoint_name(all_to_all(mixed_BTA, split_axis=1, concat_axis=2), KEPT)
    qkv_BTCE = qkv.for_devices(lax.axis_size(AXIS)).qkv_BTCE
    qkv_BTCE = checkpoint_name(all_to_all(qkv_BTCE, split_axis=3, concat_axis=1), KEPT)
    sink_H = qkv.sink_H if qkv.sink_H is None else contiguous(qkv.sink_H, 0)
    mixed_BTA = causal_attention(QKV(qkv_BTCE, qkv.head_dim, sink_H), kind, reach)
    return checkpoint_name(all_to_all(mixed_BTA, split_axis=1, concat_axis=2), KEPT)


def _of_own_heads(qkv: HeadsQKV | LatentQKV, all_to_all: Callable[..., Array]) -> HeadsQKV | LatentQKV:
    """Queries of this device's heads for all tokens; and their keys and values, or latents with its heads' weights."""
    if isinstance(qkv, HeadsQKV):
        of_heads = partial(all_to_all, split_axis=2, concat_axis=1)
        return jax.tree.map(lambda x_BTHK: checkpoint_name(of_heads(x_BTHK), KEPT), qkv)
    q_BTHK = checkpoint_name(all_to_all(qkv.q_BTHK, split_axis=2, concat_axis=1), KEPT)
    latent_BTL = checkpoint_name(all_gather(qkv.latent_BTL, AXIS, 1), KEPT)
    return replace(
        qkv, q_BTHK=q_BTHK, latent_BTL=latent_BTL, up_CE=contiguous(qkv.up_CE, 1), up_CF=contiguous(qkv.up_CF, 1)
    )
