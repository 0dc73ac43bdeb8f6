"""The attention branch of a block: projections around causal self-attention.

Dims: B batch, T tokens, D embed, C = 3 (query, key, value), A = heads x head dim.
"""

from collections.abc import Mapping

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.config import GPTConfig
from strategies.model.attention import QKV
from strategies.model.layer_info import LayerInfo
from strategies.model.layer_passes import Result
from strategies.model.matmul import matmul
from strategies.model.part import Part, Share, add_bias, add_branch
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, matrix, vector


class Attention(Part):
    """Multi-head self-attention. A tensor axis splits its heads."""

    attends = True
    qkv_DCA: nnx.Param
    qkv_bias_CA: nnx.Param
    out_AD: nnx.Param
    out_bias_D: nnx.Param

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        """Initialise the weights."""
        super().__init__(config, rngs)
        self.head_dim = config.head_dim

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Those of the output projection have a smaller deviation, by sqrt(2 layers).

        Queries, keys and values are together, as in `QKV`: for each head of keys its queries, the key and the value.
        With fewer heads of keys than of queries the last dim, C, has fewer features than A, and the dim before more.
        """
        return {
            "qkv_DCA": matrix("embed", "qkv", "key_features"),
            # The backward pass takes queries, keys and values with their biases.
            "qkv_bias_CA": vector("qkv", "key_features", backward="recomputation"),
            "out_AD": matrix("head_features", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
            "out_bias_D": vector("embed"),
        }

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the attention of `normed` to the residual stream x. Positions are those of the embedding alone.

        Args:
            x_BTD: for the tokens whose residual stream this device holds.
            normed_BTD: for all tokens of its sequences.
            info: the kernel; of its hooks `sum` completes the output projection over devices that split the heads.
        """
        hooks = info.hooks
        qkv_BTCA = add_bias(hooks.project(normed_BTD, self.qkv_DCA[...]), self.qkv_bias_CA)
        qkv = QKV(hooks.projected(checkpoint_name(qkv_BTCA, KEPT)), self.head_dim)
        mixed_BTA = hooks.attend(qkv, info.kernel, info.reach)
        return add_branch(x_BTD, hooks.sum(matmul(mixed_BTA, self.out_AD[...])), self.out_bias_D), {}

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Keep queries, keys, values and the output of attention, and the sums of exponentials in float32.

        Ulysses keeps the output once more, as it came from other devices. With a window a ring keeps the keys and
        values that came from other devices.
        """
        if share.train.remat == "full":
            return 0
        outputs, keys = 2 if share.ulysses else 1, 2 * (share.tokens + share.earlier_tokens)
        kept = (1 + outputs) * share.tokens * share.head_features + keys * share.key_features
        return share.itemsize * kept + 4 * share.tokens * share.config.heads // share.tensors

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """The gradients of both outputs, and inputs that neither are kept nor follow from what is kept.

        Where queries, keys and values are kept, their gradients take their place.
        """
        if share.reuses_residual_buffers:
            return 0
        split = share.attended_features if share.train.remat == "full" else 0
        return share.tokens * ((2 if share.sequence_parallel else 1) * share.config.embed + split)
