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
from strategies.model.layer_info import LayerInfo

ORIGINAL_TOKENS = 8192
"""Tokens of a sequence before Llama 3.1's scaling."""
SLOW, FAST = 1, 4
"""Rotations within these tokens up to which a pair of features is slowed by the whole factor, and from which by none
(Llama 3.1 and 3.2 as released: low_freq_factor and high_freq_factor)."""


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
    def angle_K(self) -> Float[Array, " K/2"]:
        """The angle of each pair of features from one token to the next.

        It is computed where it is read: a constant would be kept for the backward pass.

        >>> Rotary(head_dim=4, theta=100.0, factor=1.0).angle_K.tolist()
        [1.0, 0.10000000149011612]
        """
        angle_K = self.theta ** -(jnp.arange(0, self.head_dim, 2, dtype=jnp.float32) / self.head_dim)
        kept_K = jnp.clip((ORIGINAL_TOKENS * angle_K / (2 * math.pi) - SLOW) / (FAST - SLOW), 0, 1)
        return angle_K * (kept_K + (1 - kept_K) / self.factor)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def rotated(qkv_BTCE: Float[Array, "B T C E"], rotary: Rotary, info: LayerInfo) -> Float[Array, "B T C E"]:
    """Rotate queries and keys by the positions of their tokens, in float32; values stay as they are.

    The backward pass rotates the gradient back, and keeps nothing for that.
    """
    return _rotated(qkv_BTCE, rotary, info, 1)


def _rotated(qkv_BTCE: Array, rotary: Rotary, info: LayerInfo, direction: int) -> Array:
    angle_TK = info.positions_T[:, None] * rotary.angle_K
    cos_T11K, sin_T11K = jnp.cos(angle_TK)[:, None, None], direction * jnp.sin(angle_TK)[:, None, None]
    qkv_BTCJK = qkv_BTCE.reshape(*qkv_BTCE.shape[:3], -1, rotary.head_dim)
    first, second = jnp.split(qkv_BTCJK[:, :, :-1].astype(jnp.float32), 2, axis=-1)
    turned = first * cos_T11K - second * sin_T11K, second * cos_T11K + first * sin_T11K
    qk_BTCJK = jnp.concatenate(turned, -1).astype(qkv_BTCE.dtype)
    return jnp.concatenate([qk_BTCJK, qkv_BTCJK[:, :, -1:]], 2).reshape(qkv_BTCE.shape)


rotated.defvjp(
    lambda qkv_BTCE, rotary, info: (_rotated(qkv_BTCE, rotary, info, 1), None),
    lambda rotary, info, _, dqkv_BTCE: (_rotated(dqkv_BTCE, rotary, info, -1),),
)
