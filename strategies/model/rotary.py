"""Rotary positions: queries and keys are rotated by angles that grow with the position (Su et al. 2021, "RoFormer").

Feature i of a head is rotated with feature i + K/2, as in the released weights of Llama, Qwen and Mistral.

Dims: B batch, T tokens, C queries of a KV head, key and value, J KV heads, K head dim, E = J x K.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from strategies.infeasible import Infeasible
from strategies.model.hooks import LayerInfo

ORIGINAL_TOKENS = 8192
"""Sequence length before Llama 3.1's scaling."""
SLOW, FAST = 1, 4
"""Rotations within these tokens: at most SLOW, a feature pair is slowed by the whole factor; from FAST on, not at all
(low_freq_factor and high_freq_factor of released Llama 3.1 and 3.2)."""


YARN_TOKENS = 4096
"""Sequence length before the scaling of gpt-oss."""
YARN_SLOW, YARN_FAST = 1, 32
"""Rotations within these tokens at the ends of the ramp, from pairs slowed by the whole factor to pairs not slowed
(beta_slow and beta_fast of released gpt-oss)."""


@dataclass(frozen=True)
class Rotary:
    """The angles of rotary positions, from `GPTConfig`'s `head_dim`, `rope_theta` and `rope_factor`."""

    head_dim: int
    theta: float
    factor: float

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise Infeasible(
                f"head_size={self.head_dim} is odd; it must be even, because rotary positions rotate pairs of features"
            )

    @property
    def scale(self) -> float:
        """Factor that multiplies rotated queries and keys."""
        return 1.0

    @property
    def angle_K(self) -> Float[Array, " K/2"]:
        """The angle of each feature pair from one token to the next.

        It is computed on use: a constant would be kept for the backward pass.

        >>> Rotary(head_dim=4, theta=100.0, factor=1.0).angle_K.tolist()
        [1.0, 0.10000000149011612]
        """
        angle_K = self.theta ** -(jnp.arange(0, self.head_dim, 2, dtype=jnp.float32) / self.head_dim)
        kept_K = jnp.clip((ORIGINAL_TOKENS * angle_K / (2 * math.pi) - SLOW) / (FAST - SLOW), 0, 1)
        return angle_K * (kept_K + (1 - kept_K) / self.factor)


class Yarn(Rotary):
    """YaRN's scaling, with the numbers of gpt-oss (Peng et al. 2023, "YaRN", section 3)."""

    @property
    def scale(self) -> float:
        """The square root of 1/t in the paper's equation 22."""
        return 1 + 0.1 * math.log(self.factor)

    @property
    def angle_K(self) -> Float[Array, " K/2"]:
        """Like `Rotary.angle_K`, but the ramp is over a pair's index, not over its rotations."""
        pair_K = jnp.arange(self.head_dim // 2, dtype=jnp.float32)
        first, last = self._pair(YARN_FAST), self._pair(YARN_SLOW)
        kept_K = 1 - jnp.clip((pair_K - first) / (last - first), 0, 1)
        return self.theta ** -(2 * pair_K / self.head_dim) * (kept_K + (1 - kept_K) / self.factor)

    def _pair(self, rotations: float) -> float:
        """Index of the feature pair that makes this many rotations within `YARN_TOKENS`, clipped to existing pairs."""
        length = math.log(YARN_TOKENS / (2 * math.pi * rotations)) / math.log(self.theta)
        return min(max(self._whole(self.head_dim * length / 2, rotations), 0), self.head_dim - 1)

    def _whole(self, pair: float, rotations: float) -> float:
        """The ends of the ramp are not rounded."""
        return pair


@dataclass(frozen=True)
class LatentYarn(Yarn):
    """YaRN as DeepSeek-V3 has it: whole ends of the ramp, and a factor of the scores instead of rotated features."""

    mscale: float

    @property
    def scale(self) -> float:
        """Rotated features are not scaled."""
        return 1.0

    @property
    def score_factor(self) -> float:
        """Factor of the scores; with `mscale` 1 the square of the factor that `Yarn` has for queries, and for keys."""
        return (1 + 0.1 * self.mscale * math.log(self.factor)) ** 2

    def _whole(self, pair: float, rotations: float) -> float:
        return math.floor(pair) if rotations == YARN_FAST else math.ceil(pair)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def rotated(qk_BTCE: Float[Array, "B T C E"], rotary: Rotary, info: LayerInfo) -> Float[Array, "B T C E"]:
    """Rotate queries and keys by their tokens' positions, in float32. The backward pass needs no residuals."""
    return _rotated(qk_BTCE, rotary, info, 1)


def _rotated(qk_BTCE: Array, rotary: Rotary, info: LayerInfo, direction: int) -> Array:
    """Each feature times its cosine, plus its pair's other feature times the signed sine.

    `flip` swaps the halves of a head by indexing only. With slices and a concatenation XLA's GPU backend writes the
    halves in float32.
    """
    angle_T111K = info.positions_T.reshape(-1, 1, 1, 1, 1) * rotary.angle_K
    cos_T111K, sin_T111K = jnp.cos(angle_T111K), direction * jnp.sin(angle_T111K)
    if rotary.scale != 1:
        cos_T111K, sin_T111K = rotary.scale * cos_T111K, rotary.scale * sin_T111K
    x_BTCJ2K = qk_BTCE.reshape(*qk_BTCE.shape[:3], -1, 2, rotary.head_dim // 2).astype(jnp.float32)
    other_BTCJ2K = jnp.flip(x_BTCJ2K, -2) * jnp.array([[-1.0], [1.0]])
    turned_BTCJ2K = x_BTCJ2K * cos_T111K + other_BTCJ2K * sin_T111K
    return turned_BTCJ2K.astype(qk_BTCE.dtype).reshape(qk_BTCE.shape)


rotated.defvjp(
    lambda qk_BTCE, rotary, info: (_rotated(qk_BTCE, rotary, info, 1), None),
    lambda rotary, info, _, dqk_BTCE: (_rotated(dqk_BTCE, rotary, info, -1),),
)
