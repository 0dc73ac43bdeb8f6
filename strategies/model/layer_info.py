"""What a layer is told besides its weights and the residual stream. Dims: T tokens."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int

from strategies.model.attention import Reach
from strategies.model.hooks import Hooks


@dataclass(frozen=True)
class LayerInfo:
    """What all layers of a model have in common.

    Attributes:
        hooks: functions by which a strategy acts inside the layer.
        kernel: the kind of attention kernel, as `causal_attention` takes it.
        reach: the tokens before it to which a token attends, unless the part is dense; None for all.
        sequence: tokens of a whole sequence.
    """

    hooks: Hooks
    kernel: str
    reach: Reach | None
    sequence: int

    @property
    def positions_T(self) -> Int[Array, " T"]:
        """The position in its sequence of each token that attention and the MLP work on, from 0, in their order.

        Devices of a context axis have those of their shard: consecutive ones, or those of an early and a late chunk.
        They are computed where they are read, so a layer that does not read them computes none.
        """
        return self.hooks.own_context(jnp.arange(self.sequence), 0)
