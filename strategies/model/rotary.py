"""Rotary positions: queries and keys are rotated by angles that grow with the position (Su et al. 2021, "RoFormer").

Feature i of a head is rotated with feature i + K/2, as in the released weights of Llama, Qwen and Mistral.

Dims: B batch, T tokens, C queries of a head of keys, key and value, J heads of keys, K head dim, E = J x K.
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
"""Tokens of a sequence before Llama 3.1's scaling."""
SLOW, FAST = 1, 4
"""Rotations within these tokens up to which a pair of features is slowed by the whole factor, and from which by none
(Llama 3.1 and 3.2 as released: low_freq_factor and high_freq_factor)."""


YARN_TOKENS = 4096
"""Tokens of a sequence before the scaling of gpt-oss."""
YARN_SLOW, YARN_FAST = 1, 32
"""Rotations within these tokens at the ends of the ramp from pairs that are slowed by the whole factor to those that
are not (gpt-oss as released: beta_slow and beta_fast)."""


@dataclass(frozen=True)
class Rotary:
    """The angles of rotary positions, by the numbers of `GPTConfig`: `head_dim`, `rope_theta` and `rope_factor`."""

    head_dim: int
    theta: float
    factor: float

    def __post_init__(self) -> None:
        """Refuse heads whose features are no pairs.

        Raises:
            Infeasible: their number is odd.
        """
        if self.head_dim % 2:
            raise Infeasible(f"head_size={self.head_dim} is odd, and rotary positions turn pairs of features")

    @property
    def scale(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 1.0

    @property
    def angle_K(self) -> Float[Array, " K/2"]:
        """The angle of each pair of features from one token to the next.

        It is computed where it is read: a constant would be kept for the backward pass.

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
        """As of `Rotary`; but the ramp is over the index of a pair, not over its rotations."""
        pair_K = jnp.arange(self.head_dim // 2, dtype=jnp.float32)
        first, last = self._pair(YARN_FAST), self._pair(YARN_SLOW)
        kept_K = 1 - jnp.clip((pair_K - first) / (last - first), 0, 1)
        return self.theta ** -(2 * pair_K / self.head_dim) * (kept_K + (1 - kept_K) / self.factor)

    def _pair(self, rotations: float) -> float:
        """The index of the pair of features that rotates so often within `YARN_TOKENS`; between the first and last."""
        length = math.log(YARN_TOKENS / (2 * math.pi * rotations)) / math.log(self.theta)
        return min(max(self.head_dim * length / 2, 0), self.head_dim - 1)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def rotated(qk_BTCE: Float[Array, "B T C E"], rotary: Rotary, info: LayerInfo) -> Float[Array, "B T C E"]:
    """Rotate queries and keys by the positions of their tokens, in float32.

    The backward pass rotates the gradient back, and keeps nothing for that.
    """
    return _rotated(qk_BTCE, rotary, info, 1)


def _rotated(qk_BTCE: Array, rotary: Rotary, info: LayerInfo, direction: int) -> Array:
    """Each feature times its cosine, and the other one of its pair times the sine, whose sign is that of a rotation.

    To swap the halves of a head by `flip` is a map of indices. With slices and a concatenation XLA's GPU backend writes
    the halves in float32.
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
