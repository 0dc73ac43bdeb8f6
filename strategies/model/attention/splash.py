"""Causal self-attention on TPUs by JAX's splash attention, a fused kernel: scores stay on the chip.

The kernel works on blocks of queries and keys, and skips blocks that causality or a window masks out. Its forward pass
returns the output and the log-sum-exp of the scores. Its backward pass is two kernels, one for dK and dV and one for
dQ. Each recomputes the scores and their gradients, so there are seven matmuls of scores instead of five.

Its multi-head kernels also support fewer KV heads than query heads without copying keys: each query head reads the
blocks of its KV head, and gradients of keys are summed over query heads on the chip.

Dims: B batch, T tokens, H query heads, J KV heads, K head dim, A = H x K.
"""

import math
from contextlib import AbstractContextManager
from typing import Any

import jax
from jaxtyping import Array

from strategies.backends.backend import private
from strategies.model.attention.reach import Reach
from strategies.model.pallas.vma import call_without_vma

LANES = 128
"""Lanes of a vector. The log-sum-exp of one query's scores fills a whole vector."""
BLOCKS = 512, 256, LANES
"""Possible tokens of a block: 512 as in MaxText, or fewer if that does not divide the sequence."""
BLOCK_SIZES = *("block_q", "block_kv"), *("block_q_dkv", "block_kv_dkv"), *("block_q_dq", "block_kv_dq")
"""Arguments with block sizes: of the forward pass, of dK and dV, and of dQ."""
MATMULS = {"fwd": 2, "dq": 3, "dkv": 4}
"""Matmuls of scores by kernel name: forward, dQ, dK and dV."""


def block_tokens(tokens: int, reach: Reach | None) -> int | None:
    """Tokens of a query block and of a key block; None if no block size divides the sequence.

    Blocks are no larger than the window, so that most of a block is not masked.

    >>> block_tokens(2048, None), block_tokens(384, None), block_tokens(2048, Reach(200)), block_tokens(1000, None)
    (512, 128, 128, None)
    """
    most = BLOCKS[0] if reach is None else max(reach.window, BLOCKS[-1])
    return next((size for size in BLOCKS if tokens % size == 0 and size <= most), None)


def computed_keys(tokens: int, reach: Reach | None) -> int:
    """Keys computed per query, averaged over a sequence and rounded down.

    >>> computed_keys(2048, None), computed_keys(2048, Reach(512))
    (1280, 896)
    """
    size = block_tokens(tokens, reach)
    assert size
    count = tokens // size
    before = count if reach is None else math.ceil((reach.window - 1) / size)
    return size * sum(1 + min(block, before) for block in range(count)) // count


def attended(
    q_BHTK: Array, k_BJTK: Array, v_BJTK: Array, reach: Reach | None = None, causal: bool = True
) -> tuple[Array, Array]:
    """Normalised attention [B,H,T,K], and the log-sum-exp of the scores [B,H,T] in float32."""

    def run(q_HTK: Array, k_JTK: Array, v_JTK: Array) -> tuple[Array, Array]:
        mixed_HTK, (log_total_HT,) = _kernel(q_HTK, reach, causal)(_scaled(q_HTK), k_JTK, v_JTK)
        return mixed_HTK, log_total_HT

    with _counted(q_BHTK, reach, causal):
        return call_without_vma(jax.vmap(run), q_BHTK, k_BJTK, v_BJTK)


def gradients(
    q_BHTK: Array,
    k_BJTK: Array,
    v_BJTK: Array,
    mixed_BHTK: Array,
    log_total_BHT: Array,
    dmixed_BHTK: Array,
    reach: Reach | None = None,
    causal: bool = True,
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values. JAX has no public function that runs only the backward kernels.

    In a ring the keys are one chunk's, and `mixed` and `log_total` are over all keys.
    """
    backward = private(
        "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel", "_splash_attention_bwd"
    )

    def run(q_HTK: Array, k_JTK: Array, v_JTK: Array, mixed_HTK: Array, log_total_HT: Array, dmixed_HTK: Array) -> Any:
        kernel = _kernel(q_HTK, reach, causal)
        known = _scaled(q_HTK), k_JTK, v_JTK, None, None, mixed_HTK, log_total_HT
        grads = backward(res=(*known, kernel.dq_mask_info, kernel.dkv_mask_info), do=dmixed_HTK, **kernel.kwargs)
        _, _, _, dq_HTK, dk_JTK, dv_JTK, _, _ = grads
        return _scaled(dq_HTK), dk_JTK, dv_JTK

    with _counted(q_BHTK, reach, causal):
        return call_without_vma(jax.vmap(run), q_BHTK, k_BJTK, v_BJTK, mixed_BHTK, log_total_BHT, dmixed_BHTK)


def _counted(q_BHTK: Array, reach: Reach | None, causal: bool) -> AbstractContextManager[Any]:
    """A named scope with the keys computed per query: the kernels carry no cost estimate
    (benchmarks/program/flops.py).
    """
    tokens = q_BHTK.shape[2]
    return jax.named_scope(f"keys_{computed_keys(tokens, reach) if causal else tokens}")


def _scaled(q_HTK: Array) -> Array:
    """Queries, or their gradients, times the scale of the scores, which the kernel does not apply."""
    return q_HTK * q_HTK.shape[-1] ** -0.5


def _kernel(q_HTK: Array, reach: Reach | None, causal: bool = True) -> Any:
    """The kernel: scaled q [H,T,K], k, v [J,T,K] -> attention [H,T,K], (log-sum-exp [H,T],)."""
    from jax.experimental.pallas.ops.tpu import splash_attention  # 0.2 s, only needed on TPUs

    count, tokens, _ = q_HTK.shape
    shape = tokens, tokens
    sizes: Any = dict.fromkeys(BLOCK_SIZES, block_tokens(tokens, reach))
    window = None if reach is None else (reach.window - 1, 0)
    if causal:
        mask = splash_attention.LocalMask(shape, window, 0) if window else splash_attention.CausalMask(shape)
    else:
        mask = splash_attention.FullMask(shape)
    return splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * count),
        block_sizes=splash_attention.BlockSizes(**sizes),
        save_residuals=True,
    )
