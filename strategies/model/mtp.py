"""Multi-token prediction (MTP): one more block predicts the token after the next (DeepSeek-AI 2024, "DeepSeek-V3
Technical Report", section 2.2, equations 21 to 25, with one depth).

It takes the residual stream of a token after the last block, and the embedding of the token after it:

    z[B,T,D] = join([norm(embedding), norm(x)]), the embedding first, as in the released weights
    y[B,T,D] = block(z), whose logits, after a norm of its own, are those of the token after the next

Table and head are the model's. The last token of a sequence has no token after the next, and no loss; the sum is
divided by all tokens, as in equation 24 (Megatron-LM divides by those that have a loss), and has the z-loss, too. A
strategy sends for the block, its embedding and its head what it sends for a layer, the embedding and the head.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from strategies.gpt_config import GPTConfig
from strategies.model.block import block_of
from strategies.model.halves import by_halves
from strategies.model.hooks import LayerInfo
from strategies.model.layers import Result
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, create, matmul, matrix

JOIN = matrix("mtp_inputs", "embed")


class MTP(nnx.Module):
    """The MTP block, with its norms and the matrix that joins its inputs."""

    join_ID: nnx.Param

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        norm: Any = block_of(config).norm()  # norms are called with features only
        self.embedding_norm, self.stream_norm, self.norm = (norm(config, rngs) for _ in range(3))
        self.join_ID = create({"join_ID": JOIN}, config, rngs)["join_ID"]
        self.block = block_of(config)(config, rngs)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of the norms, the matrix and the block, such as "block.mlp.up_DF". The head has the last norm."""
        block = block_of(config)
        norm = block.norm().weights(config)
        last = {name: replace(spec, backward="unused") for name, spec in norm.items()}
        parts = {"block": block.weights(config), "embedding_norm": norm, "stream_norm": norm, "norm": last}
        named = {f"{part}.{name}": spec for part, specs in parts.items() for name, spec in specs.items()}
        return {**named, "join_ID": JOIN}

    def __call__(
        self, x_BTD: Float[Array, "B T D"], embedded_BTD: Float[Array, "B T D"], info: LayerInfo, *, halves: bool
    ) -> Result:
        """(the residual stream after the last block, the embedding of each next token) -> the block's result."""
        inputs_BTI = jnp.concatenate([self.embedding_norm(embedded_BTD), self.stream_norm(x_BTD)], -1)
        joined_BTD = checkpoint_name(matmul(inputs_BTI, self.join_ID[...]), KEPT)

        def block(z_BTD: Array) -> tuple[Array, Any]:
            return self.block(z_BTD, info)

        y_BTD, sums = by_halves(block, joined_BTD) if halves else block(joined_BTD)
        return y_BTD, self.block.extras_of(sums, info.hooks)


def after_next(targets_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Each token's token after the next, from its next; the last token has none, and its own target again."""
    return jnp.concatenate([targets_BT[:, 1:], targets_BT[:, -1:]], 1)
