"""Norms of features: LayerNorm and RMSNorm. Dims: B batch, T tokens, D embed."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.gpt_config import GPTConfig
from strategies.model.part import Part
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, vector


class LayerNorm(Part):
    """Normalise features, in float32 (Ba et al. 2016, equation 3)."""

    scale_D: nnx.Param
    bias_D: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Scales of one and biases of zero."""
        return {"scale_D": vector("embed", value=1.0), "bias_D": vector("embed")}

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalise over D. The result has the dtype of x."""
        return (_normalise(x_BTD.astype(jnp.float32), self.config.norm_epsilon) * self.scale_D + self.bias_D).astype(
            x_BTD.dtype
        )


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _normalise(x_BTD: Array, epsilon: float) -> Array:
    """Mean zero and variance one over D, differentiated by hand: autodiff reads and writes [B,T,D] twice as often."""
    return _normalise_forward(x_BTD, epsilon)[0]


def _normalise_forward(x_BTD: Array, epsilon: float) -> tuple[Array, tuple[Array, ...]]:
    mean_BT1 = checkpoint_name(x_BTD.mean(-1, keepdims=True), KEPT)
    inverse_BT1 = checkpoint_name(lax.rsqrt(x_BTD.var(-1, keepdims=True) + epsilon), KEPT)
    return (x_BTD - mean_BT1) * inverse_BT1, (x_BTD, mean_BT1, inverse_BT1)


def _normalise_backward(epsilon: float, kept: tuple[Array, ...], dy_BTD: Array) -> tuple[Array]:
    """Project out of dy the directions that change mean or variance (Ba et al. 2016, appendix)."""
    x_BTD, mean_BT1, inverse_BT1 = kept
    y_BTD = (x_BTD - mean_BT1) * inverse_BT1
    common_BT1 = dy_BTD.mean(-1, keepdims=True)
    along_BT1 = (dy_BTD * y_BTD).mean(-1, keepdims=True)
    return (inverse_BT1 * (dy_BTD - common_BT1 - y_BTD * along_BT1),)


_normalise.defvjp(_normalise_forward, _normalise_backward)


class RMSNorm(Part):
    """Divide features by their root mean square, in float32 (Zhang & Sennrich 2019, equation 4).

    The quotient is cast to the dtype of x, and then multiplied by the scale, as in Llama.
    """

    scale_D: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Scales of one."""
        return {"scale_D": vector("embed", value=1.0)}

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalise over D. The result has the dtype of x."""
        return rms_scaled(x_BTD, self.scale_D[...], self.config.norm_epsilon)


def here(mean: Array) -> Array:
    """The default mean: this device has all features."""
    return mean


def rms_scaled(
    x: Float[Array, "*batch D"], scale: Array, epsilon: float, mean: Callable[[Array], Array] = here
) -> Float[Array, "*batch D"]:
    """Divide x by its root mean square over the last dim, in float32, and multiply it by a scale.

    `mean` averages this device's mean over all devices that split the features. In `shard_map` the scale varies over
    the mesh axes over which x varies.
    """
    # `remat="none"` keeps an array with extra dims. It keeps no gathered weight, which would be gathered again.
    return _rms_scaled(x, jnp.expand_dims(scale, range(x.ndim - scale.ndim)), epsilon, mean)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _rms_scaled(x: Array, scale: Array, epsilon: float, mean: Callable[[Array], Array]) -> Array:
    """Differentiated by hand, like `_normalise`: the only full-size residual is x."""
    return _rms_forward(x, scale, epsilon, mean)[0]


def _rms_forward(
    x: Array, scale: Array, epsilon: float, mean: Callable[[Array], Array]
) -> tuple[Array, tuple[Array, Array, Array]]:
    x_float = x.astype(jnp.float32)
    inverse = checkpoint_name(lax.rsqrt(mean(jnp.square(x_float).mean(-1, keepdims=True)) + epsilon), KEPT)
    return ((x_float * inverse).astype(x.dtype) * scale).astype(x.dtype), (x, scale, inverse)


def _rms_backward(
    epsilon: float, mean: Callable[[Array], Array], kept: tuple[Array, Array, Array], dscaled: Array
) -> tuple[Array, Array]:
    """Project out of the gradient the direction that changes the root mean square."""
    x, scale, inverse = kept
    y = x.astype(jnp.float32) * inverse
    dscaled = dscaled.astype(jnp.promote_types(x.dtype, scale.dtype))
    dy = (dscaled * scale).astype(x.dtype).astype(jnp.float32)
    dx = inverse * (dy - y * mean((dy * y).mean(-1, keepdims=True)))
    shared = [dim for dim, size in enumerate(scale.shape) if size == 1]
    dscale = (dscaled * y.astype(x.dtype)).sum(shared, keepdims=True)
    return dx.astype(x.dtype), dscale.astype(scale.dtype)


_rms_scaled.defvjp(_rms_forward, _rms_backward)
