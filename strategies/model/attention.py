"""The attention branch of a block: projections around causal self-attention (attention_kernels.py).

Dims: B batch, T tokens, D embed, C = 3 (query, key, value), A = heads x head dim.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.config import GPTConfig
from strategies.model.attention_kernels import matmul
from strategies.model.hooks import Hooks
from strategies.model.part import Part, Share, add_bias, add_branch
from strategies.model.reach import Reach
from strategies.model.remat import KEPT
from strategies.model.splash_attention import LANES
from strategies.model.weights import normal, param


class Attention(Part):
    """Multi-head self-attention. A tensor axis splits its heads."""

    contracted = "head_features"

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        """Draw normal weights with deviation 0.02; the output projection less, by sqrt(2 layers)."""
        embed = config.embed
        self.head_dim, self.reach = config.head_dim, Reach.of(config)
        self.qkv_DCA = normal(rngs, (embed, 3, embed), "embed", "qkv", "head_features")
        # The backward pass takes queries, keys and values with their biases.
        self.qkv_bias_CA = param(jnp.zeros((3, embed)), "qkv", "head_features", backward="recomputation")
        self.out_AD = normal(rngs, (embed, embed), "head_features", "embed", std=0.02 * (2 * config.layers) ** -0.5)
        self.out_bias_D = param(jnp.zeros(embed), "embed")

    def __call__(self, x_BTD: Array, normed_BTD: Array, hooks: Hooks, kind: Any) -> Array:
        """Add the attention of `normed` to the residual stream x.

        Args:
            x_BTD: for the tokens whose residual stream this device holds.
            normed_BTD: for all tokens of its sequences.
            hooks: `sum` completes the output projection over devices that split the heads.
            kind: of the kernel, as `causal_attention` takes it.
        """
        qkv_BTCA = add_bias(hooks.project(normed_BTD, self.qkv_DCA[...]), self.qkv_bias_CA)
        mixed_BTA = hooks.attend(checkpoint_name(qkv_BTCA, KEPT), self.head_dim, kind, self.reach)
        return add_branch(x_BTD, hooks.sum(matmul(mixed_BTA, self.out_AD[...])), self.out_bias_D)

    @staticmethod
    def matmul_flops(config: GPTConfig) -> int:
        """Four projections: queries, keys, values, output. For the scores see `score_flops`."""
        return 2 * 4 * config.embed**2

    @staticmethod
    def score_flops(config: GPTConfig) -> int:
        """One of the two matmuls of scores, of one token with all tokens that it attends to: 2 A T, or 2 A W.

        No token has fewer keys for being early in its sequence, as if attention were not causal (`Reach.most_keys`).
        """
        reach = Reach.of(config)
        return 2 * config.embed * (reach.most_keys(config.sequence) if reach else config.sequence)

    @staticmethod
    def recomputed_flops(config: GPTConfig) -> int:
        """All projections."""
        return Attention.matmul_flops(config)

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Keep queries, keys, values and the output of attention, n A each, and the sums of exponentials in float32.

        Ulysses keeps the output once more, as it came from other devices. With a window a ring keeps the keys and
        values that came from other devices.
        """
        if share.train.remat == "full":
            return 0
        tokens = (5 if share.ulysses else 4) * share.tokens + 2 * share.earlier_tokens
        return share.itemsize * tokens * share.head_features + 4 * share.tokens * share.config.heads // share.tensors

    @staticmethod
    def working_elements(share: Share) -> int:
        """Queries, keys, values, output and scores; queries once more in full; the projected output when recomputed.

        Splash attention has no scores. Its kernels take and give arrays of their own: queries, keys, values, output,
        and the gradients of all four; and the log-sum-exp of the scores, in all lanes.
        """
        arrays = 5 if share.train.remat == "full" else 4
        scores = share.computed_keys * share.config.heads // share.tensors
        if share.splash:
            arrays, scores = arrays + 8, LANES * share.config.heads // share.tensors
        if share.skipping:
            # Keys and values once for each block that attends to them, and their gradients.
            _, before = share.skipping.block(share.config.sequence // share.ring)
            arrays += 2 * (before + 2)
        return share.tokens * (arrays * share.head_features + share.config.embed + scores)

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """The gradients of both outputs, and inputs that neither are kept nor follow from what is kept.

        Where queries, keys and values are kept, their gradients take their place.
        """
        if share.rewritten:
            return 0
        whole, split = 2 if share.sequence_parallel else 1, 4 if share.train.remat == "full" else 0
        return share.tokens * (whole * share.config.embed + split * share.head_features)
