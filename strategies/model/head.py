"""The head: the last norm, and the loss of each token. Dims: B batch, T tokens, N = B x T, V vocabulary, D embed."""

from collections.abc import Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.model.block import block_of
from strategies.model.hooks import Hooks
from strategies.model.loss import losses
from strategies.model.weights import WeightSpec, create, matrix

TABLE = matrix("vocab", "embed")


class Head(nnx.Module):
    """The last norm, and a table of its own where the head is not tied to the embedding."""

    def __init__(self, config: GPTConfig, train: TrainConfig, padded_vocab: int, rngs: nnx.Rngs):
        """Initialise the norm, and the table if there is one."""
        self.vocab, self.train_config = config.vocab, train
        norm: Any = block_of(config).norm()  # a norm is called with the residual stream alone
        self.norm = norm(config, rngs)
        if not config.tied:
            self.token_VD = create({"token_VD": TABLE}, config, rngs, padded_vocab)["token_VD"]

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Those of the norm, and the table."""
        norm = {f"norm.{name}": spec for name, spec in block_of(config).norm().weights(config).items()}
        return norm if config.tied else {**norm, "token_VD": TABLE}

    def __call__(
        self, x_BTD: Float[Array, "B T D"], token_VD: Array, targets_BT: Int[Array, "B T"], hooks: Hooks
    ) -> Float[Array, " N"]:
        """Compute the loss of each token in float32. A device computes logits only for its rows of the table."""
        normed_ND = hooks.all_tokens(self.norm(x_BTD)).reshape(-1, x_BTD.shape[-1])
        return losses(normed_ND, token_VD, targets_BT.reshape(-1), hooks, vocab=self.vocab, train=self.train_config)

    @staticmethod
    def matmul_flops(config: GPTConfig, padded_vocab: int | None = None) -> int:
        """FLOPs of the logits of one token, forward; without padding by default."""
        return 2 * config.embed * (padded_vocab or config.vocab)
