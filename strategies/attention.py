"""Causal self-attention that keeps nothing of size [B,H,T,T] for the backward pass.

Dims: B batch, T query tokens, S key tokens (the same ones), H heads, K head dim, A = H x K.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from strategies.config import Attention


def causal_attention(qkv_BTCA: Float[Array, "B T 3 A"], head_dim: int, kind: Attention) -> Float[Array, "B T A"]:
    """Attention of each token to itself and those before it, in heads of `head_dim` features.

    `kind` is "cudnn" for the fused kernel (half precision on NVIDIA GPUs) and else "xla".
    """
    q_BTHK, k_BTHK, v_BTHK = (qkv_BTCA[:, :, c].reshape(*qkv_BTCA.shape[:2], -1, head_dim) for c in range(3))
    if kind == "cudnn":
        mixed_BTHK = jax.nn.dot_product_attention(q_BTHK, k_BTHK, v_BTHK, is_causal=True, implementation="cudnn")
    else:
        mixed_BTHK = _attention(q_BTHK, k_BTHK, v_BTHK)
    return mixed_BTHK.reshape(*qkv_BTCA.shape[:2], -1)


@partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
def _attention(q_BTHK: Array, k_BTHK: Array, v_BTHK: Array) -> Array:
    """Softmax normalised after it has met the values: K divisions a token instead of T (Dao 2023, section 3.1.1)."""
    q_BHTK, k_BHSK, v_BHSK = (x.swapaxes(1, 2) for x in (q_BTHK * q_BTHK.shape[-1] ** -0.5, k_BTHK, v_BTHK))
    tokens = jnp.arange(q_BTHK.shape[1])
    scores_BHTS = jnp.einsum("bhtk,bhsk->bhts", q_BHTK, k_BHSK).astype(jnp.float32)
    scores_BHTS = jnp.where(tokens[:, None] >= tokens, scores_BHTS, jnp.finfo(jnp.float32).min)
    largest_BHT1 = jax.lax.stop_gradient(scores_BHTS.max(-1, keepdims=True))
    weights_BHTS = jnp.exp(scores_BHTS - largest_BHT1)
    total_BHT1 = weights_BHTS.sum(-1, keepdims=True)
    mixed_BHTK = jnp.einsum("bhts,bhsk->bhtk", weights_BHTS.astype(v_BHSK.dtype), v_BHSK) / total_BHT1
    return mixed_BHTK.astype(v_BHSK.dtype).swapaxes(1, 2)
