"""Attention on NVIDIA GPUs by cuDNN, for sinks and for chunks of a ring: scores stay on the chip.

A chunk's gradients need the log-sum-exp of the scores over all keys of the ring, in float32, and the output over them
(Dao 2023, "FlashAttention-2", section 3.1). cuDNN's backward kernel takes both. JAX has no public way to pass them: the
gradient of `jax.nn.dot_product_attention` uses its own keys' values, and rounds the log-sum-exp that it returns to the
output's dtype. So this module calls private functions below it. They differ between versions of JAX; `available` tests
whether the installed one has them.

Dims: B batch, T query tokens, S key tokens, H query heads, J KV heads, K head dim.
"""

import importlib
import inspect
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from strategies.backends.backend import private
from strategies.model.attention.reach import Reach


def attended(
    q_BHTK: Float[Array, "B H T K"],
    k_BJSK: Float[Array, "B J S K"],
    v_BJSK: Float[Array, "B J S K"],
    reach: Reach | None = None,
    causal: bool = True,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T"]]:
    """Normalised attention in the dtype of the queries, and the log-sum-exp of the scores in float32."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    results: Any = dot_product_attention(
        *(q_BHTK, k_BJSK, v_BJSK),
        scale=q_BHTK.shape[-1] ** -0.5,
        mask_type=MaskType.CAUSAL if causal else MaskType.NO_MASK,
        qkv_layout="BNTH",
        sliding_window_length=None if reach is None else reach.window,
        return_residual=True,
    )
    return results


def gradients(
    q_BHTK: Array,
    k_BJSK: Array,
    v_BJSK: Array,
    mixed_BHTK: Array,
    log_total_BHT: Array,
    dmixed_BHTK: Array,
    reach: Reach | None = None,
    causal: bool = True,
) -> tuple[Array, Array, Array]:
    """A chunk's contributions to dQ, dK and dV, in the queries' dtype. `mixed` and `log_total` are over all keys."""
    from jax._src.cudnn.fused_attention_stablehlo import AttentionLayout, MaskType, _dot_product_attention_bwd_rule

    known: dict[str, Any] = {
        "scale": q_BHTK.shape[-1] ** -0.5,
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": MaskType.CAUSAL if causal else MaskType.NO_MASK,
        "layout": AttentionLayout.BNTH.value,
        "sliding_window_length": None if reach is None else reach.window,
        "is_training": False,
        "score_mod": None,
        "cudnn_version": None,
        "return_residual": False,
    }
    backward: Any = _dot_product_attention_bwd_rule
    *names, _, _ = inspect.signature(backward).parameters
    absent = [jnp.zeros(0, q_BHTK.dtype)] * 7  # bias, lengths, offsets and page tables
    modifiers = [()] * ("score_mod" in names)  # score modifiers: JAX 0.12 has them, 0.10 does not
    residuals = q_BHTK, k_BJSK, v_BJSK, *absent, *modifiers, log_total_BHT, mixed_BHTK
    return backward(*(known[name] for name in names), residuals, dmixed_BHTK)[:3]


@cache
def available() -> bool:
    """Whether the installed JAX has the private functions that this module calls."""
    x_BHTK, log_total_BHT = jax.ShapeDtypeStruct((1, 1, 8, 8), jnp.bfloat16), jax.ShapeDtypeStruct((1, 1, 8), "float32")
    try:
        from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention

        inspect.signature(dot_product_attention).bind(
            *[x_BHTK] * 3,
            scale=1.0,
            mask_type=None,
            qkv_layout="BNTH",
            sliding_window_length=None,
            return_residual=True,
        )
        shapes = jax.eval_shape(partial(gradients), *[x_BHTK] * 4, log_total_BHT, x_BHTK)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        return False
    return [each.shape for each in shapes] == [x_BHTK.shape] * 3


def answer_for(major: int, minor: int) -> None:
    """Let attention be as wide as absent GPUs of a compute capability allow: JAX asks an attached one.

    Without any it refuses heads of more than 128 features, and values narrower than keys (JAX 0.10 to 0.12).
    """
    name = "jax._src.cudnn.fused_attention_stablehlo"
    private(name, "check_compute_capability")
    vars(importlib.import_module(name))["check_compute_capability"] = lambda least: (
        (major, minor) >= tuple(map(int, least.split(".")))
    )
