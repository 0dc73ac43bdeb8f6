"""The MLP branch of a block: GELU (Radford et al. 2019) or SwiGLU. Dims: B batch, T tokens, D embed, F mlp."""

from collections.abc import Mapping
from functools import cache

import jax
from flax import nnx
from jax import lax
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.hooks import LayerInfo
from strategies.model.part import Part, add_bias, add_branch
from strategies.model.passes import Result
from strategies.model.share import Share
from strategies.model.weights import WeightSpec, matmul, matrix, vector


class MLP(Part):
    """Two matmuls around a GELU. A tensor axis splits the hidden features."""

    up_DF: nnx.Param
    up_bias_F: nnx.Param
    down_FD: nnx.Param
    down_bias_D: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Those of the second matmul have a smaller deviation, by sqrt(2 layers)."""
        return {
            "up_DF": matrix("embed", "mlp"),
            "up_bias_F": vector("mlp"),
            "down_FD": matrix("mlp", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
            "down_bias_D": vector("embed", backward="unused"),
        }

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the MLP of `normed` to the residual stream x.

        Args:
            x_BTD: for the tokens whose residual stream this device holds.
            normed_BTD: for all tokens of its sequences.
            info: of its hooks `sum` completes the second matmul over devices that split the hidden features.
        """
        hidden_BTF = jax.nn.gelu(add_bias(matmul(normed_BTD, self.up_DF[...]), self.up_bias_F), approximate=True)
        return add_branch(x_BTD, info.hooks.sum(matmul(hidden_BTF, self.down_FD[...])), self.down_bias_D), {}

    @staticmethod
    def activated_elements(share: Share) -> int:
        """Hidden features."""
        return share.tokens * share.mlp

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Keep the input of GELU; with `remat="none"` in float32, and three more arrays and those of its tanh."""
        hidden = share.tokens * share.mlp
        if share.train.remat == "none":
            return (4 + (3 + tanh_arrays()) * share.itemsize) * hidden
        return share.itemsize * hidden if share.train.remat == "dots" else 0

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """The gradients of both outputs, and inputs that neither are kept nor follow from what is kept."""
        return _waiting_elements(share, results=1)


@cache
def tanh_arrays() -> int:
    """Arrays that autodiff keeps of y = tanh x: with JAX 0.10, y and 1 - y; with JAX 0.12, 1 - y^2 alone."""
    shape = jax.ShapeDtypeStruct((1,), "float32")
    return len(jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(lax.tanh, x)[1], shape)))


class GatedMLP(Part):
    """SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer", equation 6). A tensor axis splits F."""

    gate_DF: nnx.Param
    up_DF: nnx.Param
    down_FD: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Those of the last matmul have a smaller deviation, by sqrt(2 layers)."""
        into = matrix("embed", "mlp")
        return {"gate_DF": into, "up_DF": into, "down_FD": MLP.weights(config)["down_FD"]}

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the MLP of `normed` to the residual stream x; see `MLP`."""
        gate_BTF, up_BTF = matmul(normed_BTD, self.gate_DF[...]), matmul(normed_BTD, self.up_DF[...])
        return add_branch(x_BTD, info.hooks.sum(matmul(gated(gate_BTF, up_BTF), self.down_FD[...]))), {}

    @staticmethod
    def activated_elements(share: Share) -> int:
        """Hidden features."""
        return share.tokens * share.mlp

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Keep the results of the first two matmuls; with `remat="none"` also their gated product."""
        arrays = {"none": 3, "dots": 2, "full": 0}[share.train.remat]
        return arrays * share.itemsize * share.tokens * share.mlp

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """The gradients of all outputs, and inputs that neither are kept nor follow from what is kept."""
        return _waiting_elements(share, results=2)


def _waiting_elements(share: Share, results: int) -> int:
    """Of an MLP whose hidden features follow from this many results of matmuls.

    With `remat="dots"` these are kept, and the gradients of all of them wait beside them. With `remat="none"` gradients
    overwrite them; but of several results the gradient of each is computed from all, so XLA copies their buffers.
    """
    whole = 2 if share.train.remat == "full" or share.sequence_parallel else 1
    whole = 0 if share.reuses_residual_buffers else whole
    split = {"none": results if results > 1 else 0, "dots": results, "full": 1 + results}[share.train.remat]
    return share.tokens * (whole * share.config.embed + split * share.mlp)


@jax.custom_vjp
def gated(gate_BTF: Array, up_BTF: Array) -> Array:
    """silu(gate) x up. Differentiated by hand: autodiff keeps three more arrays with `remat="none"`."""
    return jax.nn.silu(gate_BTF) * up_BTF


def _gated_backward(kept: tuple[Array, Array], dhidden_BTF: Array) -> tuple[Array, Array]:
    gate_BTF, up_BTF = kept
    sigmoid_BTF = jax.nn.sigmoid(gate_BTF)
    dsilu_BTF = sigmoid_BTF * (1 + gate_BTF * (1 - sigmoid_BTF))
    return dhidden_BTF * up_BTF * dsilu_BTF, dhidden_BTF * gate_BTF * sigmoid_BTF


gated.defvjp(lambda gate_BTF, up_BTF: (gated(gate_BTF, up_BTF), (gate_BTF, up_BTF)), _gated_backward)
