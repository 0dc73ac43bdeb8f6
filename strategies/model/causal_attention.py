"""Causal self-attention over whole sequences, by the kernel that fits: fused, dense or sparse.

Dims: B batch, T tokens, C = 3 (query, key, value), H heads, K head dim, A = H x K.
"""

import jax
from jaxtyping import Array, Float

from strategies.model.attention_kernels import attend
from strategies.model.reach import Reach
from strategies.model.sparse_attention import attend_sparse


def causal_attention(
    qkv_BTCA: Float[Array, "B T 3 A"], head_dim: int, kind: str, reach: Reach | None = None
) -> Float[Array, "B T A"]:
    """Attention of each token to itself and to the tokens before it, in heads of `head_dim` features.

    Args:
        qkv_BTCA: queries, keys and values of whole sequences.
        head_dim: features of a head.
        kind: "cudnn" for the fused kernel (half precision on NVIDIA GPUs, dense or with a window), otherwise "xla".
        reach: the tokens before it to which a token attends; None for all.
    """
    if kind == "cudnn":
        return _fused(qkv_BTCA, head_dim, reach)
    if reach is None or not reach.skips(qkv_BTCA.shape[1]):
        return attend(qkv_BTCA, head_dim, reach)
    return attend_sparse(qkv_BTCA, None, head_dim, reach)


def _fused(qkv_BTCA: Array, head_dim: int, reach: Reach | None) -> Array:
    q_BTHK, k_BTHK, v_BTHK = (qkv_BTCA[:, :, c].reshape(*qkv_BTCA.shape[:2], -1, head_dim) for c in range(3))
    before = None if reach is None else (reach.window - 1, 0)
    mixed_BTHK = jax.nn.dot_product_attention(
        q_BTHK, k_BTHK, v_BTHK, is_causal=True, local_window_size=before, implementation="cudnn"
    )
    return mixed_BTHK.reshape(*qkv_BTCA.shape[:2], -1)
