"""How far rounding may drive the first steps of two programs apart that compute the same.

Spreading a step changes no operation, only the order in which sums are added up. A reordered sum of n float32 terms
changes by about sqrt(n) roundoffs relative to its size, because the errors of its terms are independent (Higham & Mary
2019, "A New Approach to Probabilistic Rounding Error Analysis", theorem 2.4). The longest sums run over the tokens, the
hidden features or the vocabulary. A layer has four such sums in sequence, the head two, and the backward pass as many
again; their errors are independent too. In bfloat16 and float16, programs accumulate in float32 and round what they
store, which gives the same bound without the sqrt(n).

The bound holds for the norm of the error of each weight's gradient, relative to the norm of the gradient. A gradient
that vanishes by cancellation, as that of the bias of keys, is all rounding: one whose norm is below `FLOOR` of the
whole gradient's is compared on that scale. In 16 bits those are also the gradients of queries and keys of a new model.
"""

import math
from dataclasses import dataclass

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig

ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}
"""Unit roundoff: the largest relative error of storing a number."""
FLOOR = {"float32": 2.0**-13, "bfloat16": 2.0**-12, "float16": 2.0**-12}
"""Norm of a gradient relative to the whole, below which it may be rounding: of differences of larger numbers."""
TAIL = 4
"""A projection on random signs deviates this many times more than the norm of what is projected, at most. It does so
in one of 1,500 cases of errors that are as large as the bound, which is several times what rounding makes."""


@dataclass(frozen=True)
class Rounding:
    """Bounds on relative differences after some steps.

    Attributes:
        of_step: of losses and global norms after one step; it adds up over steps.
        gradient: of the first moments after all steps.
        floor: `FLOOR` of the compute dtype.
    """

    of_step: float
    gradient: float
    floor: float

    @classmethod
    def of(cls, config: GPTConfig, train: TrainConfig, steps: int, devices: int = 1) -> "Rounding":
        """Of a model, a global batch, a compute dtype, and the dtype in which gradients are summed over devices."""
        bound = rounding_bound(config, train.batch_size, train.dtype)
        if train.reduce_dtype != "float32" and devices > 1:
            bound += math.sqrt(devices) * ROUNDOFF[train.reduce_dtype]
        return cls(bound, steps * bound, FLOOR[train.dtype])


def rounding_bound(config: GPTConfig, batch_size: int, dtype: str) -> float:
    """Bound on the relative difference that another order of summation makes in one step."""
    longest = max(batch_size * config.sequence, config.mlp_dim, config.vocab) if dtype == "float32" else 1
    sums_in_sequence = 2 * (4 * config.layers + 2)
    return math.sqrt(longest * sums_in_sequence) * ROUNDOFF[dtype]
