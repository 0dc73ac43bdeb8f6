"""Two halves of a batch that overlap each other's communication (`TrainConfig.halves`).

A tensor-parallel layer waits for each of its all-reduces, because the next matmul uses the result; an expert-parallel
layer waits for its tokens. Two halves of the sequences are independent: while one communicates, the compiler can run
the other's matmuls (Wang et al. 2024, "Domino: Eliminating Communication in LLM Training via Generic Tensor Slicing and
Overlapping"; for experts DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.2.1). The byte count is unchanged,
with twice the number of collectives. A layer's terms of the loss may depend on sums over all sequences, as a
load-balancing loss does, so they are computed after both halves (`Block.extras_of`).

Each half's gradient of a weight is rounded to the compute dtype, and so is their sum: in bfloat16 one rounding more
than without halves.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def by_halves(layer: Callable[[Array], tuple[Array, Any]], x_BTD: Array) -> tuple[Array, Any]:
    """Run a layer on each half of the sequences, and add up its sums. B is even.

    The gradient of `lax.split` concatenates the halves' gradients. Gradients of two slices would be padded and added,
    which is slower (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    halves, sums = zip(*map(layer, lax.split(x_BTD, [x_BTD.shape[0] // 2] * 2)), strict=True)
    return jnp.concatenate(halves), jax.tree.map(jnp.add, *sums)
