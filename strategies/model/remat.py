"""Rematerialisation: which activations are kept for the backward pass, by name and by primitive.

Parts of the model name what is worth keeping (`checkpoint_name`); `TrainConfig.remat` chooses a policy.
"""

from typing import Any

import jax

from strategies.model.attention import ATTENDED

KEPT = "kept"
"""Name of values worth keeping in addition to outputs of plain matmuls."""
GATHERED = "gathered"
"""Name of gathered weights to keep for the backward pass."""
TOTALS = "totals"
"""Name of sums over the vocabulary, one number per token. Recomputing them would communicate again."""

_GATHERING = {"all_gather", "all_gather_reduced", "sharding_constraint"}
"""Primitives that gather. Explicit arrays are gathered by the second."""
_CASTS = {"convert_element_type", "reduced_vary_cast", "reduced_vary_cast_p"}  # the last only in JAX 0.10
_REARRANGING = _GATHERING | _CASTS | {"reshard", "reshape", "transpose"}


def _all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep everything computed, but no gathered weight and no view of one: otherwise fsdp would not be ZeRO-3."""
    return primitive.name not in _REARRANGING


def _is_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep everything gathered, explicitly or by the compiler."""
    return primitive.name in _GATHERING


def _is_fused_attention(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep the output and log-sum-exp of cuDNN's forward kernel, which JAX does not name."""
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
"""What a layer keeps, by `TrainConfig.remat`."""
HEAD_POLICY = _POLICIES.save_from_both_policies(LAYER_POLICIES["dots"], _is_gathered)
"""The head keeps the logits once, in the compute dtype, and gathered weights, because its backward pass follows at
once.

It recomputes only elementwise operations. Without a policy the compiler would decide whether a matmul or gather is
repeated: XLA's CPU backend merges them in JAX 0.10, and keeps the barrier of `jax.checkpoint` in 0.12."""
CHUNKED_HEAD_POLICY = _POLICIES.save_from_both_policies(LAYER_POLICIES["full"], _is_gathered)
"""With `logits_bytes` the head keeps no logits."""
