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
from strategies.model.part import add_bias
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, vector

LIMIT = 7.0
"""Of hidden features: of a gate from above, of an up from both sides (swiglu_limit of the released models)."""
GAIN = 1.702
"""Of the sigmoid of a gate (swiglu_alpha)."""


class ClampedExperts(Experts):
    """Experts whose router and matmuls have biases, and whose gates and ups are clamped."""

    logit_bias_E: nnx.Param
    gate_bias_EF: nnx.Param
    up_bias_EF: nnx.Param
    down_bias_ED: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Those of `Experts`, and the biases. Gates and ups are kept with theirs."""
        hidden = vector("experts", "expert_mlp", backward="recomputation")
        biases = {"logit_bias_E": vector("routes"), "gate_bias_EF": hidden, "up_bias_EF": hidden}
        return {**Experts.weights(config), **biases, "down_bias_ED": vector("experts", "embed")}

    def logits(self, x_ND: Array) -> Array:
        """Scores of the experts for tokens."""
        return add_bias(super().logits(x_ND), self.logit_bias_E)

    def outputs(self, x_XRD: Array, weights_XR1: Array, rows: Rows, hooks: Hooks) -> Array:
        """See `Experts.outputs`. The weight of an empty row is zero, so its biases do not count."""
        named = partial(checkpoint_name, name=KEPT)
        gate_XRF = named(add_bias(rows.matmul(x_XRD, self.gate_EDF[...]), rows.spread(self.gate_bias_EF[...])))
        up_XRF = named(add_bias(rows.matmul(x_XRD, self.up_EDF[...]), rows.spread(self.up_bias_EF[...])))
        y_XRD = rows.matmul(clamped(gate_XRF, up_XRF) * weights_XR1, self.down_EFD[...])
        return add_bias(y_XRD, weights_XR1 * rows.spread(hooks.per_device_share(self.down_bias_ED[...])))


@jax.custom_vjp
def clamped(gate: Array, up: Array) -> Array:
    """(up + 1) x gate x sigmoid(1.702 gate), of clamped gates and ups. It keeps nothing else for the backward pass."""
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
