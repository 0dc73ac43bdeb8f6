"""Parts of a block of the model, each with its weights and its function: norms, and the MLPs. costs/parts.py has costs.

Attention and mixtures of experts have files of their own. Dims: B batch, T tokens, D embed, F mlp.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.gpt_config import GPTConfig
from strategies.model.hooks import Hooks, LayerInfo
from strategies.model.layers import Extras, Result, Sums
from strategies.model.remat import KEPT
from strategies.model.weights import (
    WeightSpec,
    broadcast_to_shards,
    create,
    matmul,
    matrix,
    reshape,
    varying_as,
    vector,
)


class Part(nnx.Module):
    """A part of a transformer block. By default it has no weights.

    A branch is called with the residual stream x[B,T,D] of this device's own tokens, the normalised features of all
    tokens of its sequences, or of its own tokens if it `gathers` itself, and the `LayerInfo`. It returns x plus its
    output, and its sums.

    Attributes:
        attends: whether it calls `Hooks.attend`, once.
        gathers: whether it calls `Hooks.all_tokens` itself, with what it takes of a token.
        dense: whether it attends to all earlier tokens, whatever the model's window or stride.
        extras: names of the terms that it adds to the loss (`layers.Extras`).
        means: how many numbers per token it averages over devices by `Hooks.mean`, in the forward and again in the
            backward pass.
    """

    attends: ClassVar[bool] = False
    gathers: ClassVar[bool] = False
    dense: ClassVar[bool] = False
    extras: ClassVar[tuple[str, ...]] = ()
    means: ClassVar[int] = 0

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        self.config = config
        for name, param in create(self.weights(config), config, rngs).items():
            setattr(self, name, param)

    def extras_of(self, sums: Sums, hooks: Hooks) -> Extras:
        """Terms that it adds to the loss (`extras`), from the sums that it returned for this device's tokens."""
        return sums

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Its weights by name, in the order of initialisation. Each becomes an attribute."""
        return {}

    @staticmethod
    def taken(config: GPTConfig) -> int:
        """Features of a token that it takes of all tokens."""
        return config.embed


def add_branch(x_BTD: Array, branch_BTD: Array, hooks: Hooks, bias_D: Any = None) -> Array:
    """Complete the sum of a branch over devices, and add it and its bias, if any.

    That sum with the bias is a residual: it would communicate again. Without `Hooks.sum` the result is: with a name on
    the branch XLA would not let the matmul add x.
    """
    if hooks.sum is not Hooks.sum:
        branch_BTD = hooks.sum(branch_BTD)
        return x_BTD + checkpoint_name(branch_BTD if bias_D is None else add_bias(branch_BTD, bias_D), KEPT)
    y_BTD = x_BTD + branch_BTD
    return checkpoint_name(y_BTD if bias_D is None else add_bias(y_BTD, bias_D), KEPT)


def add_bias(x: Array, bias: Any) -> Array:
    """Add a bias in the dtype of the array, so that it can be the epilogue of a matmul.

    The cast is of the broadcast bias, so autodiff sums the gradient over tokens in the dtype of the bias, float32, and
    then over devices.
    """
    bias = varying_as(bias[...], x)
    return x + jnp.broadcast_to(broadcast_to_shards(bias, x), x.shape).astype(x.dtype)


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
        y_BTD: Any = _normalise(x_BTD.astype(jnp.float32), self.config.norm_epsilon)
        scale, bias = (broadcast_to_shards(each[...], x_BTD) for each in (self.scale_D, self.bias_D))
        return (y_BTD * scale + bias).astype(x_BTD.dtype)


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


def rms_scaled(
    x: Float[Array, "*batch D"], scale: Array, epsilon: float, mean: Callable[[Array], Array] = Hooks.mean
) -> Float[Array, "*batch D"]:
    """Divide x by its root mean square over the last dim, in float32, and multiply it by a scale.

    `mean` averages this device's mean over all devices that split the features. In `shard_map` the scale varies over
    the mesh axes over which x varies.
    """
    # `remat="none"` keeps an array with extra dims. It keeps no gathered weight, which would be gathered again.
    scale = broadcast_to_shards(scale, x)
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


class MLP(Part):
    """Two matmuls around a GELU. A tensor axis splits the hidden features."""

    up_DF: nnx.Param
    up_bias_F: nnx.Param
    down_FD: nnx.Param
    down_bias_D: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """The second matmul's initial deviation is smaller by sqrt(2 layers)."""
        return {
            "up_DF": matrix("embed", "mlp"),
            "up_bias_F": vector("mlp", backward="recomputation"),
            "down_FD": matrix("mlp", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
            "down_bias_D": vector("embed", backward="unused"),
        }

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the MLP to x. `Hooks.sum` completes the second matmul over devices that split the hidden features."""
        # XLA's matmuls have two dims, and only a GELU of the same two dims becomes part of one.
        normed_ND = reshape(normed_BTD, (-1, normed_BTD.shape[-1]))
        up_NF = add_bias(matmul(normed_ND, self.up_DF[...]), self.up_bias_F)
        down_BTD = reshape(gelu_matmul(up_NF, self.down_FD[...]), normed_BTD.shape)
        return add_branch(x_BTD, down_BTD, info.hooks, self.down_bias_D), {}


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


gelu = jax.custom_vjp(_gelu)
"""GELU by tanh (Hendrycks & Gimpel 2016, section 2). The gradient computes the tanh again.

Without the barrier XLA would write the tanh, which it shares with GELU itself, to memory. `gelu_matmul` needs none:
between its passes is `jax.checkpoint` or a loop.
"""
gelu.defvjp(lambda x: (_gelu(x), x), lambda x, dy: jax.vjp(_gelu, lax.optimization_barrier(x))[1](dy))


def _gelu_matmul(x_NF: Array, w_FD: Array) -> Array:
    return matmul(gelu(x_NF), w_FD)


gelu_matmul = jax.custom_vjp(_gelu_matmul)
"""GELU and a matmul. Of the activations the only residual is x.

Only the residual has a name: on a named input of GELU JAX puts an operation that keeps XLA from making GELU part of the
matmul before it.
"""


def _gelu_matmul_forward(x_NF: Array, w_FD: Array) -> tuple[Array, tuple[Array, Array]]:
    return _gelu_matmul(x_NF, w_FD), (checkpoint_name(x_NF, KEPT), w_FD)


def _gelu_matmul_backward(kept: tuple[Array, Array], dy_ND: Array) -> tuple[Array, Array]:
    x_NF, w_FD = kept
    return jax.vjp(_gelu_matmul, x_NF, w_FD)[1](dy_ND)


gelu_matmul.defvjp(_gelu_matmul_forward, _gelu_matmul_backward)


class GatedMLP(Part):
    """SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer", equation 6). A tensor axis splits F."""

    gate_DF: nnx.Param
    up_DF: nnx.Param
    down_FD: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """The last matmul's initial deviation is smaller by sqrt(2 layers)."""
        into = matrix("embed", "mlp")
        return {"gate_DF": into, "up_DF": into, "down_FD": MLP.weights(config)["down_FD"]}

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the MLP to x, like `MLP`."""
        gate_BTF, up_BTF = matmul(normed_BTD, self.gate_DF[...]), matmul(normed_BTD, self.up_DF[...])
        return add_branch(x_BTD, matmul(gated(gate_BTF, up_BTF), self.down_FD[...]), info.hooks), {}


@jax.custom_vjp
def gated(gate_BTF: Array, up_BTF: Array) -> Array:
    """silu(gate) x up. Differentiated by hand, because autodiff keeps three more arrays with `remat="none"`."""
    return jax.nn.silu(gate_BTF) * up_BTF


def _gated_backward(kept: tuple[Array, Array], dhidden_BTF: Array) -> tuple[Array, Array]:
    gate_BTF, up_BTF = kept
    sigmoid_BTF = jax.nn.sigmoid(gate_BTF)
    dsilu_BTF = sigmoid_BTF * (1 + gate_BTF * (1 - sigmoid_BTF))
    return dhidden_BTF * up_BTF * dsilu_BTF, dhidden_BTF * gate_BTF * sigmoid_BTF


gated.defvjp(lambda gate_BTF, up_BTF: (gated(gate_BTF, up_BTF), (gate_BTF, up_BTF)), _gated_backward)
