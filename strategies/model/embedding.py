"""Embeddings of tokens and positions. Dims: B batch, T tokens, V vocabulary with padding, D embed."""

from collections.abc import Mapping

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from strategies.gpt_config import GPTConfig
from strategies.model.block import block_of
from strategies.model.hooks import Hooks
from strategies.model.weights import WeightSpec, create, matrix


class Embedding(nnx.Module):
    """Learned embeddings of tokens, and of positions unless they are rotary.

    It has no matmul, and its backward pass needs no weight.
    """

    token_VD: nnx.Param
    position_TD: nnx.Param  # only with learned positions

    def __init__(self, config: GPTConfig, padded_vocab: int, rngs: nnx.Rngs):
        """Initialise both tables."""
        for name, param in create(self.weights(config), config, rngs, padded_vocab).items():
            setattr(self, name, param)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """A table of the vocabulary, and one of the positions if they are learned."""
        positions = {"position_TD": matrix("sequence", "embed")} if block_of(config).learned_positions else {}
        return {"token_VD": matrix("vocab", "embed"), **positions}

    def __call__(self, tokens_BT: Int[Array, "B T"], hooks: Hooks) -> Float[Array, "B T D"]:
        """Look up the tokens in this device's rows of the table, and sum over the devices that hold other rows."""
        sequence = tokens_BT.shape[1]
        tokens_BT, rows = hooks.own_context(tokens_BT, 1), self.token_VD.shape[0]
        row_BT = tokens_BT - hooks.vocab_start(rows)
        held_BT1 = ((row_BT >= 0) & (row_BT < rows))[..., None]
        # Gradients of rows that are looked up more than once are summed in float32, and those of positions.
        wide_VD, dtype = self.token_VD.astype(jnp.float32), self.token_VD.dtype
        found_BTD = jnp.where(held_BT1, wide_VD[jnp.clip(row_BT, 0, rows - 1)], 0).astype(dtype)
        x_BTD = hooks.embed_sum(found_BTD)
        if not hasattr(self, "position_TD"):
            return x_BTD
        position_TD = hooks.own_tokens(hooks.own_context(self.position_TD[:sequence], 0))
        return (x_BTD + position_TD.astype(jnp.float32)).astype(dtype)
