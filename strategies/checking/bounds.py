"""Bounds on how far rounding may drive apart the first steps of two programs that compute the same.

Sharding a step changes no operation, only the order of summation. A reordered sum of n float32 terms changes by about
sqrt(n) roundoffs relative to its size, because the errors of its terms are independent (Higham & Mary 2019, "A New
Approach to Probabilistic Rounding Error Analysis", theorem 2.4). The longest sums run over the tokens, the hidden
features or the vocabulary. A layer has four such sums in sequence, the head two, and the backward pass the same number
again; their errors are independent, too. In bfloat16 and float16, programs accumulate in float32 and round what they
store, which gives the same bound without the sqrt(n).

The bound holds for the norm of each weight's gradient error, relative to the gradient's norm. A gradient that vanishes
by cancellation, like that of the key bias, is all rounding: if its norm is below `FLOOR` of the whole gradient's, it is
compared on that scale. In 16 bits these include the gradients of queries and keys of a new model.
"""

import math
from dataclasses import dataclass

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig

ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}
"""Unit roundoff: the largest relative error of storing a number."""
FLOOR = 2.0**-12
"""Norm of a gradient relative to the whole, below which it may be rounding: of differences of larger numbers."""
TAIL = 4
"""Upper bound on how many times more a projection on random signs deviates than the norm of the projected array. It is
exceeded in one of 1,500 cases with errors as large as the bound, which is several times the actual rounding."""


@dataclass(frozen=True)
class Rounding:
    """Bounds on relative differences after some steps.

    Attributes:
        of_step: for losses and global norms after one step; it adds up over steps.
        gradient: for the first moments after all steps.
    """

    of_step: float
    gradient: float

    @classmethod
    def of(cls, config: GPTConfig, train: TrainConfig, steps: int, devices: int = 1) -> "Rounding":
        """The bounds for a model, a global batch, and the dtypes of compute, of gradient sums and of momentum."""
        bound = rounding_bound(config, train.batch_size, train.dtype)
        if train.reduce_dtype != "float32" and devices > 1:
            bound += math.sqrt(devices) * ROUNDOFF[train.reduce_dtype]
        kept = 0.0 if train.momentum_dtype == "float32" else ROUNDOFF[train.momentum_dtype]
        return cls(bound, steps * (bound + kept))


def rounding_bound(config: GPTConfig, batch_size: int, dtype: str) -> float:
    """Bound on the relative difference that reordered summation causes in one step."""
    longest = max(batch_size * config.sequence, config.mlp_dim, config.vocab) if dtype == "float32" else 1
    sums_in_sequence = 2 * (4 * config.layers + 2)
    return math.sqrt(longest * sums_in_sequence) * ROUNDOFF[dtype]
