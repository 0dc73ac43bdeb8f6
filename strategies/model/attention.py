"""The attention branch of a block: projections around causal self-attention (attention_kernels.py).

Dims: B batch, T tokens, D embed, C = 3 (query, key, value), A = heads x head dim.
"""

from collections.abc import Mapping
from typing import Any

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
from strategies.model.weights import WeightSpec, matrix, vector


class Attention(Part):
    """Multi-head self-attention. A tensor axis splits its heads."""

    contracted = "head_features"
    qkv_DCA: nnx.Param
    qkv_bias_CA: nnx.Param
    out_AD: nnx.Param
    out_bias_D: nnx.Param

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        """Initialise the weights."""
        super().__init__(config, rngs)
        self.head_dim, self.reach = config.head_dim, Reach.of(config)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Those of the output projection have a smaller deviation, by sqrt(2 layers)."""
        return {
            "qkv_DCA": matrix("embed", "qkv", "head_features"),
            # The backward pass takes queries, keys and values with their biases.
            "qkv_bias_CA": vector("qkv", "head_features", backward="recomputation"),
            "out_AD": matrix("head_features", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
            "out_bias_D": vector("embed"),
        }

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

        A ring also holds the keys and values of the next hop, and the scores of all pairs of chunks that are computed
        at once. A fused kernel has no scores. The kernels of splash attention take and give arrays of their own:
        queries, keys, values, output, and the gradients of all four; and the log-sum-exp of the scores, in all lanes.
        """
        arrays, scores = 5 if share.train.remat == "full" else 4, share.computed_keys
        if share.kernel != "xla":
            arrays, scores = (arrays + 8, LANES) if share.splash else (arrays, 0)
        elif share.skipping:
            # Keys and values once for each block that attends to them, and their gradients.
            arrays += 2 * (_key_copies(share) + 1)
        elif share.ring > 1:
            arrays, scores = arrays + 2, share.chunk * _pairs_at_once(share) // 2
        features = arrays * share.head_features + share.config.embed
        return share.tokens * (features + scores * share.config.heads // share.tensors)

    @staticmethod
    def alone_elements(share: Share) -> int:
        """Scores, the array that replaces masked ones, and the mask in bytes; with five arrays, and copies of keys.

        For a single head the compiler copies the scores once more. A ring masks few scores. It holds the scores of each
        pair of chunks and their gradients; queries, output, and the gradients of both; keys and values of the device
        and of two hops, and their gradients of two hops; and the three gradients of a pair.
        """
        if share.kernel != "xla":
            return 0
        heads, tokens = share.config.heads // share.tensors, share.config.sequence
        if share.ring > 1 and not share.skipping:
            arrays = 4 + 3 * 2 + 2 * 2 + 3
            return share.tokens * (arrays * share.head_features + _pairs_at_once(share) * share.chunk * heads)
        keys, arrays = share.computed_keys, 5
        if share.skipping:
            arrays += 2 * _key_copies(share)
        elif tokens % 2 == 0:
            keys = tokens * 3 // 4  # two blocks, of which one has half of the keys
        quarters = 13 if heads == (share.contexts if share.ulysses else 1) else 9
        return share.tokens * (arrays * share.head_features + quarters * keys * heads // 4)

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """The gradients of both outputs, and inputs that neither are kept nor follow from what is kept.

        Where queries, keys and values are kept, their gradients take their place.
        """
        if share.rewritten:
            return 0
        whole, split = 2 if share.sequence_parallel else 1, 4 if share.train.remat == "full" else 0
        return share.tokens * (whole * share.config.embed + split * share.head_features)


def _key_copies(share: Share) -> int:
    """How many times keys and values exist where blocks of queries attend to those before them, too."""
    assert share.skipping
    return share.skipping.block(share.config.sequence // share.ring)[1] + 1


def _pairs_at_once(share: Share) -> int:
    """Pairs of chunks that depend on nothing of each other: three of the device's own keys, and two of the last hop.

    With three devices or more, a loop over hops is between them.
    """
    return 5 if share.ring == 2 else 3
