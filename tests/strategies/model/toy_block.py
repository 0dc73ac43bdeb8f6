"""The parts of a Llama block: RMSNorm, grouped-query attention with rotary positions, and a gated MLP.

This file is all that another block needs. `register` makes it known.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from strategies import GPTConfig
from strategies.costs import working
from strategies.model.attention import QKV
from strategies.model.block import BLOCKS, Block
from strategies.model.matmul import matmul
from strategies.model.part import Part, Share, add_bias, add_branch
from strategies.model.remat import KEPT
from strategies.model.self_attention import Attention
from strategies.model.weights import matrix, vector
from tests.strategies.equality import CONFIG


class RMSNorm(Part):
    """Divide features by their root mean square (Zhang and Sennrich 2019, equation 4)."""

    scale_D: nnx.Param

    @staticmethod
    def weights(config):
        """Scale one."""
        return {"scale_D": vector("embed", value=1.0)}

    def __call__(self, x_BTD):
        """Normalise over D in float32."""
        wide_BTD = x_BTD.astype(jnp.float32)
        inverse_BT1 = checkpoint_name(lax.rsqrt(jnp.square(wide_BTD).mean(-1, keepdims=True) + 1e-5), KEPT)
        return (wide_BTD * inverse_BT1 * self.scale_D).astype(x_BTD.dtype)

    @staticmethod
    def kept_bytes(share):
        """One number a token."""
        return 4 * share.residual_tokens if share.train.remat == "dots" else 0


class RotaryAttention(Attention):
    """Attention that rotates queries and keys by the positions of their tokens."""

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the attention of `normed` to the residual stream x."""
        hooks = info.hooks
        qkv_BTCE = add_bias(hooks.project(normed_BTD, self.qkv_DCA[...]), self.qkv_bias_CA)
        q, k, v = QKV(hooks.projected(checkpoint_name(qkv_BTCE, KEPT)), self.head_dim).apart
        qkv = QKV.of(rotated(q, info.positions_T), rotated(k, info.positions_T), v)
        mixed_BTA = hooks.attend(qkv, info.kernel, info.reach)
        return add_branch(x_BTD, hooks.sum(matmul(mixed_BTA, self.out_AD[...])), self.out_bias_D), {}


def rotated(x_BTHK, position_T):
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021, "RoFormer", section 3.2.2)."""
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    angle_TK = position_T[:, None] / 100 ** jnp.linspace(0, 1, first.shape[-1], endpoint=False)
    cos_T1K, sin_T1K = (function(angle_TK)[:, None].astype(x_BTHK.dtype) for function in (jnp.cos, jnp.sin))
    return jnp.concatenate([first * cos_T1K - second * sin_T1K, first * sin_T1K + second * cos_T1K], -1)


class GatedMLP(Part):
    """SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer"), with remat="dots" or "full"."""

    gate_DF: nnx.Param
    up_DF: nnx.Param
    down_FD: nnx.Param
    down_bias_D: nnx.Param

    @staticmethod
    def weights(config):
        """Three matrices and a bias."""
        into, out = matrix("embed", "mlp"), matrix("mlp", "embed")
        return {"gate_DF": into, "up_DF": into, "down_FD": out, "down_bias_D": vector("embed", backward="unused")}

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the gated MLP to the residual stream."""
        hidden_BTF = jax.nn.silu(matmul(normed_BTD, self.gate_DF[...])) * matmul(normed_BTD, self.up_DF[...])
        return add_branch(x_BTD, info.hooks.sum(matmul(hidden_BTF, self.down_FD[...])), self.down_bias_D), {}

    @staticmethod
    def kept_bytes(share):
        """Gate and up."""
        return 2 * share.itemsize * share.tokens * share.mlp if share.train.remat == "dots" else 0


def gated(share: Share) -> int:
    """Working arrays: gate, up, their product, and the gradients of gate and up."""
    return 5 * share.tokens * share.mlp


class ToyBlock(Block):
    """The parts of a Llama block."""

    parts: ClassVar = {"norm1": RMSNorm, "attention": RotaryAttention, "norm2": RMSNorm, "mlp": GatedMLP}


class Alternating(Block):
    """GPT-2's parts, then those of a Llama block."""

    parts: ClassVar = {
        **Block.parts,
        "norm3": RMSNorm,
        "attention2": RotaryAttention,
        "norm4": RMSNorm,
        "mlp2": GatedMLP,
    }


class PenalisedMLP(GatedMLP):
    """A gated MLP that adds to the loss: the squares of what it takes, as a router adds its own."""

    extras = ("squares",)

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the gated MLP to the residual stream."""
        squares = 0.1 * jnp.square(normed_BTD.astype(jnp.float32) - 0.1).sum()
        return super().__call__(x_BTD, normed_BTD, info)[0], {"squares": squares}


class PenalisedBlock(Block):
    """A Llama block that adds to the loss."""

    parts: ClassVar = {**ToyBlock.parts, "mlp": PenalisedMLP}


SMALL = dataclasses.replace(CONFIG, block="toy", key_heads=4)
TOY = GPTConfig(layers=6, embed=48, heads=8, key_heads=4, head_size=10, vocab=257, sequence=24, mlp=80, block="toy")


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has to be told of the blocks."""
    for name, block in (("toy", ToyBlock), ("both", Alternating), ("penalised", PenalisedBlock)):
        monkeypatch.setitem(BLOCKS, name, block)
    of_parts = {RMSNorm: working.norm, RotaryAttention: working.attention, GatedMLP: gated, PenalisedMLP: gated}
    for part, elements in of_parts.items():
        monkeypatch.setitem(working.PARTS, part, working.Working(elements))
