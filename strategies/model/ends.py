"""Both ends of the model: the embedding, and the head from the last norm to the loss of each token.

With `logits_bytes` the head computes logits, cross entropy and z-loss one chunk of tokens at a time. Dims: B batch, T
tokens, N = B x T, C chunks, n tokens of a chunk, D embed, V rows of the vocabulary on this device.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.block import block_of
from strategies.model.hooks import Hooks
from strategies.model.layers import scan_kept
from strategies.model.remat import TOTALS
from strategies.model.weights import WeightSpec, broadcast_to_shards, create, matrix, reshape


class Embedding(nnx.Module):
    """Learned embeddings of tokens, and of positions unless they are rotary. Its backward pass needs no weight."""

    token_VD: nnx.Param
    position_TD: nnx.Param  # only with learned positions

    def __init__(self, config: GPTConfig, padded_vocab: int, rngs: nnx.Rngs):
        for name, param in create(self.weights(config), config, rngs, padded_vocab).items():
            setattr(self, name, param)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """A table of the vocabulary, and a table of positions if they are learned."""
        positions = {"position_TD": matrix("sequence", "embed")} if block_of(config).learned_positions else {}
        return {"token_VD": matrix("vocab", "embed"), **positions}

    def look_up(self, tokens_BT: Int[Array, "B T"], hooks: Hooks) -> Float[Array, "B T D"]:
        """Look up the tokens in this device's rows of the table, and sum over the devices that hold other rows."""
        tokens_BT, rows = hooks.own_context(tokens_BT, 1), self.token_VD.shape[0]
        return hooks.embed_sum(hooks.look_up(self.token_VD[...], tokens_BT - hooks.vocab_start(rows)))

    def __call__(self, tokens_BT: Int[Array, "B T"], hooks: Hooks) -> Float[Array, "B T D"]:
        """Look up the tokens, and add positions if they are learned."""
        x_BTD, sequence = self.look_up(tokens_BT, hooks), tokens_BT.shape[1]
        if not hasattr(self, "position_TD"):
            return x_BTD
        position_TD = hooks.own_tokens(hooks.own_context(self.position_TD[:sequence], 0))
        return (x_BTD + broadcast_to_shards(position_TD.astype(jnp.float32), x_BTD)).astype(self.token_VD.dtype)


TABLE = matrix("vocab", "embed")


class Head(nnx.Module):
    """The last norm, and its own table if the head is not tied to the embedding."""

    def __init__(self, config: GPTConfig, train: TrainConfig, padded_vocab: int, rngs: nnx.Rngs):
        self.vocab, self.train_config = config.vocab, train
        norm: Any = block_of(config).norm()  # the last norm is called with the residual stream only
        self.norm = norm(config, rngs)
        if not config.tied:
            self.token_VD = create({"token_VD": TABLE}, config, rngs, padded_vocab)["token_VD"]

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of the norm, and the table."""
        norm = {f"norm.{name}": spec for name, spec in block_of(config).norm().weights(config).items()}
        return norm if config.tied else {**norm, "token_VD": TABLE}

    def __call__(
        self, x_BTD: Float[Array, "B T D"], token_VD: Array, targets_BT: Int[Array, "B T"], hooks: Hooks
    ) -> Float[Array, " N"]:
        """Compute the loss of each token in float32. A device computes logits only for its rows of the table."""
        normed_ND = reshape(hooks.all_tokens(self.norm(x_BTD)), (-1, x_BTD.shape[-1]))
        return losses(normed_ND, token_VD, targets_BT.reshape(-1), hooks, vocab=self.vocab, train=self.train_config)


def losses(
    x_ND: Float[Array, "N D"],
    token_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    hooks: Hooks,
    *,
    vocab: int,
    train: TrainConfig,
) -> Float[Array, " N"]:
    """The loss of each token, in float32. Rows of the table from `vocab` on are padding.

    With `logits_bytes` logits are computed for one chunk of tokens at a time and recomputed in the backward pass. The
    table's gradients are accumulated over chunks in float32.
    """
    if train.logits_bytes is None:
        return _losses(x_ND, token_VD, targets_N, hooks, vocab, train.z_loss)
    wide_VD, (parts, vocab_parts) = token_VD.astype(jnp.float32), hooks.compiler_shards
    at_once = tokens_at_once(len(x_ND) // parts, len(token_VD) // vocab_parts, train.logits_bytes)

    keep_totals = jax.checkpoint_policies.save_only_these_names(TOTALS)

    @partial(jax.checkpoint, prevent_cse=False, policy=keep_totals)  # iterations of a loop do not share subexpressions
    def of_chunk(x_pnD: Array, targets_pn: Array) -> Array:
        x_ND, targets_N = reshape(x_pnD, (-1, x_pnD.shape[-1])), targets_pn.reshape(-1)
        losses_N = _losses(x_ND, wide_VD.astype(token_VD.dtype), targets_N, hooks, vocab, train.z_loss)
        return losses_N.reshape(targets_pn.shape)

    # The compiler's parts (p) of the tokens are on different devices, so a chunk takes equally many tokens of each
    # part.
    x_CpnD = reshape(x_ND, (parts, -1, at_once, x_ND.shape[1])).swapaxes(0, 1)
    targets_Cpn = targets_N.reshape(parts, -1, at_once).swapaxes(0, 1)
    _, losses_Cpn = scan_kept(lambda carry, chunk: (carry, of_chunk(*chunk)), (), (x_CpnD, targets_Cpn))
    return losses_Cpn.swapaxes(0, 1).reshape(-1)


def _losses(x_ND: Array, token_VD: Array, targets_N: Array, hooks: Hooks, vocab: int, z_loss: float) -> Array:
    """Softmax over a sharded vocabulary (Shoeybi et al. 2019, "Megatron-LM", section 3)."""
    logits_NV = x_ND @ token_VD.T
    rows = token_VD.shape[0]
    row_V = hooks.vocab_start(rows) + jnp.arange(rows)
    logits_NV = jnp.where(row_V < vocab, logits_NV.astype(jnp.float32), -jnp.inf)
    largest_N = checkpoint_name(hooks.vocab_max(lax.stop_gradient(logits_NV.max(-1))), TOTALS)
    total_N = checkpoint_name(hooks.vocab_sum(jnp.exp(logits_NV - largest_N[:, None]).sum(-1)), TOTALS)
    target_N = hooks.vocab_sum(jnp.where(row_V == targets_N[:, None], logits_NV, 0).sum(-1))
    log_total_N = jnp.log(total_N) + largest_N
    losses_N = log_total_N - target_N
    return losses_N + z_loss * jnp.square(log_total_N) if z_loss else losses_N


def tokens_at_once(tokens: int, rows: int, logits_bytes: int) -> int:
    """The largest divisor of `tokens` for which float32 logits [divisor, rows] take at most `logits_bytes` bytes.

    >>> tokens_at_once(512, 50304, 2**20), tokens_at_once(512, 50304, 2**30)
    (4, 512)
    """
    most = min(tokens, logits_bytes // (4 * rows))
    if not most:
        raise Infeasible(
            f"logits_bytes={logits_bytes} is less than the {4 * rows} bytes of one token's logits on a device; use more"
        )
    return max(part for part in range(1, most + 1) if tokens % part == 0)
