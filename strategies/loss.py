"""From normalised features to the loss of each token: logits, cross entropy and z-loss, a chunk of tokens at a time.

Dims: N tokens, n tokens of a chunk, D embed, V the rows of the vocabulary that are held here.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from strategies.config import Infeasible, TrainConfig
from strategies.hooks import Hooks

TOTALS = "totals"
"""The name of what is summed over the vocabulary, one number a token: summing it again would communicate again."""


def losses(
    x_ND: Float[Array, "N D"],
    token_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    hooks: Hooks,
    *,
    vocab: int,
    train: TrainConfig,
) -> Float[Array, " N"]:
    """Of each token, in float32; rows from `vocab` on are padding.

    With `logits_bytes`, logits exist for a chunk of the tokens at a time, and are not kept for the backward pass. The
    gradients that the table gets from the chunks are added up in float32.
    """
    if train.logits_bytes is None:
        return _losses(x_ND, token_VD, targets_N, hooks, vocab, train.z_loss)
    tokens, wide_VD = len(x_ND), token_VD.astype(jnp.float32)
    at_once = tokens_at_once(tokens, len(token_VD), train.logits_bytes)

    keep_totals = jax.checkpoint_policies.save_only_these_names(TOTALS)

    @partial(jax.checkpoint, prevent_cse=False, policy=keep_totals)  # iterations of a loop do not share subexpressions
    def of_chunk(x_nD: Array, targets_n: Array) -> Array:
        return _losses(x_nD, wide_VD.astype(token_VD.dtype), targets_n, hooks, vocab, train.z_loss)

    chunks = x_ND.reshape(-1, at_once, x_ND.shape[1]), targets_N.reshape(-1, at_once)
    return lax.map(lambda chunk: of_chunk(*chunk), chunks).reshape(tokens)


def _losses(x_ND: Array, token_VD: Array, targets_N: Array, hooks: Hooks, vocab: int, z_loss: float) -> Array:
    """Softmax over a split vocabulary: Shoeybi et al. 2019, "Megatron-LM", section 3."""
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
    """The largest of equal parts of the tokens whose float32 logits cost no more than that.

    >>> tokens_at_once(512, 50304, 2**20), tokens_at_once(512, 50304, 2**30)
    (4, 512)

    Raises:
        Infeasible: those of one token cost more.
    """
    most = min(tokens, logits_bytes // (4 * rows))
    if not most:
        raise Infeasible(f"logits_bytes={logits_bytes}; those of one token are {4 * rows} bytes on a device")
    return max(part for part in range(1, most + 1) if tokens % part == 0)
