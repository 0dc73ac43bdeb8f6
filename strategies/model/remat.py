"""Rematerialisation: which activations are kept for the backward pass, by name and by primitive.

The parts of the model name what is worth keeping (`checkpoint_name`); `TrainConfig.remat` chooses a policy.
"""

from typing import Any

import jax

from strategies.model.attention import ATTENDED

KEPT = "kept"
"""Worth keeping besides the outputs of plain matmuls."""
GATHERED = "gathered"
"""Gathered weights that are to be kept for the backward pass."""
TOTALS = "totals"
"""Sums over the vocabulary, one number a token: summing them again would communicate again."""

_REARRANGING = {"all_gather", "sharding_constraint", "reshape", "transpose", "convert_element_type"}


def _all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep whatever was computed, but no gathered weight and no view of one: fsdp would not be ZeRO-3 otherwise."""
    return primitive.name not in _REARRANGING


def _is_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep whatever was gathered, by hand or by the compiler."""
    return primitive.name in {"all_gather", "sharding_constraint"}


def _is_fused_attention(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep the output of cuDNN's forward kernel, and the log-sum-exp of its scores, to which JAX gives no names."""
    return primitive.name == "dot_product_attention_fwd_wrapper"


_POLICIES = jax.checkpoint_policies
LAYER_POLICIES = {
    "none": _all_but_gathered,
    "dots": _POLICIES.save_from_both_policies(
        _POLICIES.save_from_both_policies(_POLICIES.dots_with_no_batch_dims_saveable, _is_fused_attention),
        _POLICIES.save_only_these_names(KEPT, ATTENDED, GATHERED, TOTALS),
    ),
    "full": _POLICIES.save_only_these_names(GATHERED, TOTALS),
}
"""By `TrainConfig.remat`: what a layer keeps."""
HEAD_POLICY = _POLICIES.save_from_both_policies(LAYER_POLICIES["dots"], _is_gathered)
"""The head keeps one copy of the logits, in the compute dtype, and gathered weights: its backward pass comes at once.

It recomputes only elementwise operations. Without a policy the compiler would decide whether a matmul or a gather is
repeated: XLA's CPU backend merges it with the first in JAX 0.10, and keeps the barrier of `jax.checkpoint` in 0.12.
"""
CHUNKED_HEAD_POLICY = _POLICIES.save_from_both_policies(LAYER_POLICIES["full"], _is_gathered)
"""With `logits_bytes` the head keeps no logits."""
