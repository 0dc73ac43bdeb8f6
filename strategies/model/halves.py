"""Two halves of a batch that hide each other's communication (`TrainConfig.halves`).

A layer that is split over a tensor axis waits for each of its sums, because the next matmul takes the result; a layer
whose experts are split waits for its tokens. Two halves of the sequences depend on nothing of each other: while one is
communicated, the compiler can run the matmuls of the other (Wang et al. 2024, "Domino: Eliminating Communication in LLM
Training via Generic Tensor Slicing and Overlapping"; of experts DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
section 3.2.1). The same bytes are sent, in twice as many collectives. What a layer adds to the loss may depend on sums
over all sequences, as a load-balancing loss does, so it is computed after both halves (`Block.extras_of`).

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
    """Run a layer on each half of the sequences, and add up what it sums over them. B is even.

    The gradient of `lax.split` joins those of the halves. Those of two slices would be padded and added up, which takes
    longer (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    halves, sums = zip(*map(layer, lax.split(x_BTD, [x_BTD.shape[0] // 2] * 2)), strict=True)
    return jnp.concatenate(halves), jax.tree.map(jnp.add, *sums)
