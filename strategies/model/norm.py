"""Layer normalisation (Ba et al. 2016). Dims: B batch, T tokens, D embed."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.config import GPTConfig
from strategies.model.part import Part, Share
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, vector


class LayerNorm(Part):
    """Normalise features, in float32 (Ba et al. 2016, equation 3)."""

    scale_D: nnx.Param
    bias_D: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Scale one and bias zero."""
        return {"scale_D": vector("embed", value=1.0), "bias_D": vector("embed")}

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalise over D. The result has the dtype of the input."""
        return (_normalise(x_BTD.astype(jnp.float32)) * self.scale_D + self.bias_D).astype(x_BTD.dtype)

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Keep mean and deviation in float32; with `remat="none"` also x before and after scaling, and the scale.

        After scaling x is float32. But where a tensor axis without sequence parallelism takes x, it is kept as it is
        taken: in the compute dtype.
        """
        tokens, embed = share.residual_tokens, share.config.embed
        if share.train.remat == "full":
            return 0
        statistics = 2 * 4 * tokens
        if share.train.remat == "dots":
            return statistics
        scaled = share.itemsize if share.tensors > 1 and not share.sequence_parallel else 4
        return statistics + (4 + scaled) * tokens * embed + 4 * embed


@jax.custom_vjp
def _normalise(x_BTD: Array) -> Array:
    """Mean zero and variance one over D. Differentiated by hand: autodiff reads and writes [B,T,D] twice as often."""
    return _normalise_forward(x_BTD)[0]


def _normalise_forward(x_BTD: Array) -> tuple[Array, tuple[Array, ...]]:
    mean_BT1 = checkpoint_name(x_BTD.mean(-1, keepdims=True), KEPT)
    inverse_BT1 = checkpoint_name(lax.rsqrt(x_BTD.var(-1, keepdims=True) + 1e-5), KEPT)
    return (x_BTD - mean_BT1) * inverse_BT1, (x_BTD, mean_BT1, inverse_BT1)


def _normalise_backward(kept: tuple[Array, ...], dy_BTD: Array) -> tuple[Array]:
    """Subtract from dy what would change mean or variance (Ba et al. 2016, appendix)."""
    x_BTD, mean_BT1, inverse_BT1 = kept
    y_BTD = (x_BTD - mean_BT1) * inverse_BT1
    common_BT1 = dy_BTD.mean(-1, keepdims=True)
    along_BT1 = (dy_BTD * y_BTD).mean(-1, keepdims=True)
    return (inverse_BT1 * (dy_BTD - common_BT1 - y_BTD * along_BT1),)


_normalise.defvjp(_normalise_forward, _normalise_backward)
