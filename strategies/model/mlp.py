"""The MLP branch of a block: GELU (Radford et al. 2019) or SwiGLU. Dims: B batch, T tokens, D embed, F mlp."""

from collections.abc import Mapping

import jax
from flax import nnx
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.hooks import LayerInfo
from strategies.model.layers import Result
from strategies.model.part import Part, add_bias, add_branch
from strategies.model.weights import WeightSpec, matmul, matrix, vector


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
            "up_bias_F": vector("mlp"),
            "down_FD": matrix("mlp", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
            "down_bias_D": vector("embed", backward="unused"),
        }

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the MLP to x. `Hooks.sum` completes the second matmul over devices that split the hidden features."""
        hidden_BTF = jax.nn.gelu(add_bias(matmul(normed_BTD, self.up_DF[...]), self.up_bias_F), approximate=True)
        return add_branch(x_BTD, info.hooks.sum(matmul(hidden_BTF, self.down_FD[...])), self.down_bias_D), {}


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
        return add_branch(x_BTD, info.hooks.sum(matmul(gated(gate_BTF, up_BTF), self.down_FD[...]))), {}


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
