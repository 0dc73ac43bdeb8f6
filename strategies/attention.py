"""Causal self-attention that keeps nothing of size [B,H,T,T] for the backward pass.

Dims: B batch, T query tokens, S key tokens (the same ones), H heads, K head dim, C = 3 (query, key, value), A = H x K.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

KEPT = "kept"
"""The name of what is worth keeping for the backward pass besides the outputs of plain matmuls."""


def causal_attention(qkv_BTCA: Float[Array, "B T 3 A"], head_dim: int, kind: str) -> Float[Array, "B T A"]:
    """Attention of each token to itself and those before it, in heads of `head_dim` features.

    `kind` is "cudnn" for the fused kernel (half precision on NVIDIA GPUs) and else "xla".
    """
    batch, tokens, _, features = qkv_BTCA.shape
    qkv_BTCHK = qkv_BTCA.reshape(batch, tokens, 3, -1, head_dim)
    if kind == "cudnn":
        q_BTHK, k_BTHK, v_BTHK = (qkv_BTCHK[:, :, c] for c in range(3))
        mixed_BTHK = jax.nn.dot_product_attention(q_BTHK, k_BTHK, v_BTHK, is_causal=True, implementation="cudnn")
    else:
        mixed_BTHK = attend(*qkv_BTCHK.transpose(2, 0, 3, 1, 4)).swapaxes(1, 2)
    return mixed_BTHK.reshape(batch, tokens, features)


@jax.custom_vjp
def attend(q_BHTK: Array, k_BHSK: Array, v_BHSK: Array) -> Array:
    """Softmax attention, [B,H,T,K]. The backward pass computes the scores again (Dao et al. 2022, section 3.1)."""
    return _forward(q_BHTK, k_BHSK, v_BHSK)[0]


def _scores(q_BHTK: Array, k_BHSK: Array) -> Array:
    tokens = jnp.arange(q_BHTK.shape[2])
    scores_BHTS = jnp.einsum("bhtk,bhsk->bhts", q_BHTK * q_BHTK.shape[-1] ** -0.5, k_BHSK).astype(jnp.float32)
    return jnp.where(tokens[:, None] >= tokens, scores_BHTS, jnp.finfo(jnp.float32).min)


def _forward(q_BHTK: Array, k_BHSK: Array, v_BHSK: Array) -> tuple[Array, tuple[Array, ...]]:
    """Normalised after the values are mixed: K divisions a token instead of T."""
    scores_BHTS = _scores(q_BHTK, k_BHSK)
    largest_BHT1 = scores_BHTS.max(-1, keepdims=True)
    weights_BHTS = jnp.exp(scores_BHTS - largest_BHT1)
    total_BHT1 = weights_BHTS.sum(-1, keepdims=True)
    mixed_BHTK = jnp.einsum("bhts,bhsk->bhtk", weights_BHTS.astype(v_BHSK.dtype), v_BHSK) / total_BHT1
    mixed_BHTK = checkpoint_name(mixed_BHTK.astype(v_BHSK.dtype), KEPT)
    log_total_BHT1 = checkpoint_name(largest_BHT1 + jnp.log(total_BHT1), KEPT)
    return mixed_BHTK, (q_BHTK, k_BHSK, v_BHSK, mixed_BHTK, log_total_BHT1)


def _backward(kept: tuple[Array, ...], dmixed_BHTK: Array) -> tuple[Array, Array, Array]:
    """Equations of Dao et al. 2022, appendix B.2."""
    q_BHTK, k_BHSK, v_BHSK, mixed_BHTK, log_total_BHT1 = kept
    weights_BHTS = jnp.exp(_scores(q_BHTK, k_BHSK) - log_total_BHT1)
    dv_BHSK = jnp.einsum("bhts,bhtk->bhsk", weights_BHTS.astype(v_BHSK.dtype), dmixed_BHTK)
    dweights_BHTS = jnp.einsum("bhtk,bhsk->bhts", dmixed_BHTK, v_BHSK).astype(jnp.float32)
    common_BHT1 = (dmixed_BHTK * mixed_BHTK).astype(jnp.float32).sum(-1, keepdims=True)
    dscores_BHTS = (weights_BHTS * (dweights_BHTS - common_BHT1)).astype(q_BHTK.dtype)
    scale = q_BHTK.shape[-1] ** -0.5
    dq_BHTK = jnp.einsum("bhts,bhsk->bhtk", dscores_BHTS, k_BHSK) * scale
    dk_BHSK = jnp.einsum("bhts,bhtk->bhsk", dscores_BHTS, q_BHTK * scale)
    return dq_BHTK, dk_BHSK, dv_BHSK


attend.defvjp(_forward, _backward)
