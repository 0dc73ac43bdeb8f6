"""Experts of gpt-oss: with biases, and a clamped SwiGLU (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card").

Dims: N tokens, D embed, E experts, F hidden features of an expert, X experts or blocks, R their rows.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.experts import Experts
from strategies.model.grouped_matmul import Rows
from strategies.model.hooks import Hooks
from strategies.model.parts import add_bias
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, vector

LIMIT = 7.0
"""Bound on hidden features: gates from above, ups from both sides (swiglu_limit of the released models)."""
GAIN = 1.702
"""Factor inside the sigmoid of a gate (swiglu_alpha)."""


class ClampedExperts(Experts):
    """Experts whose router and matmuls have biases, and whose gates and ups are clamped."""

    logit_bias_E: nnx.Param
    gate_bias_EF: nnx.Param
    up_bias_EF: nnx.Param
    down_bias_ED: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of `Experts` and the biases. Gates and ups are residuals that include their biases."""
        hidden = vector("experts", "expert_mlp", backward="recomputation")
        biases = {"logit_bias_E": vector("routes"), "gate_bias_EF": hidden, "up_bias_EF": hidden}
        return {**Experts.weights(config), **biases, "down_bias_ED": vector("experts", "embed")}

    def logits(self, x_ND: Array) -> Array:
        """Router logits."""
        return add_bias(super().logits(x_ND), self.logit_bias_E)

    def outputs(self, x_XRD: Array, weights_XR1: Array, rows: Rows, hooks: Hooks) -> Array:
        """See `Experts.outputs`. An empty row has weight zero, so its biases have no effect."""
        named = partial(checkpoint_name, name=KEPT)
        gate_XRF = named(add_bias(rows.matmul(x_XRD, self.gate_EDF[...]), rows.spread(self.gate_bias_EF[...])))
        up_XRF = named(add_bias(rows.matmul(x_XRD, self.up_EDF[...]), rows.spread(self.up_bias_EF[...])))
        y_XRD = rows.matmul(clamped(gate_XRF, up_XRF) * weights_XR1, self.down_EFD[...])
        return add_bias(y_XRD, weights_XR1 * rows.spread(hooks.per_device_share(self.down_bias_ED[...])))


@jax.custom_vjp
def clamped(gate: Array, up: Array) -> Array:
    """(up + 1) x gate x sigmoid(1.702 gate) of clamped gates and ups. Its only residuals are gate and up."""
    gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
    return (up + 1) * gate * jax.nn.sigmoid(GAIN * gate)


def _backward(kept: tuple[Array, Array], dhidden: Array) -> tuple[Array, Array]:
    gate, up = kept
    low, inside = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
    sigmoid = jax.nn.sigmoid(GAIN * low)
    dgate = dhidden * (inside + 1) * sigmoid * (1 + GAIN * low * (1 - sigmoid))
    dup = dhidden * low * sigmoid
    return jnp.where(gate <= LIMIT, dgate, 0), jnp.where(jnp.abs(up) <= LIMIT, dup, 0)


clamped.defvjp(lambda gate, up: (clamped(gate, up), (gate, up)), _backward)
