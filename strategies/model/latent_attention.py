"""Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).

Keys and values of all heads are computed from a few latents of a token, and queries may be, too. One rotary key of a
token is shared by all heads. A tensor axis splits the heads; latents are computed on each device for its own tokens,
and gathered as latents, so that the sum of their gradients over devices is also one of latents.

Dims: B batch, T tokens, D embed, H heads, K = N + R features of a query or key: N plain, R rotary;
V features of a value, Q query latents, C latents, L = C + R, I = Q + L or D + L, A = H x K, E = H x N, F = H x V.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.attention import LatentQKV
from strategies.model.hooks import LayerInfo
from strategies.model.layers import Result
from strategies.model.parts import Part, add_branch, rms_scaled
from strategies.model.remat import KEPT
from strategies.model.rotary import LatentYarn, rotated
from strategies.model.weights import WeightSpec, matmul, matrix, vector

EPSILON = 1e-6
"""Of the norms of latents, whatever `GPTConfig.norm_epsilon`: transformers sets none for DeepSeek-V2 and -V3."""

LATENTS = "query_latents", "latents_and_key"
"""Dims of latents."""


class LatentAttention(Part):
    """Self-attention whose keys and values are computed from latents."""

    attends = True
    gathers: ClassVar[bool] = True
    query_DA: nnx.Param
    query_down_DQ: nnx.Param
    query_norm_Q: nnx.Param
    query_up_QA: nnx.Param
    down_DL: nnx.Param
    norm_C: nnx.Param
    key_up_CE: nnx.Param
    value_up_CF: nnx.Param
    out_FD: nnx.Param

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.rotary = LatentYarn(config.rotary_size or 0, config.rope_theta, config.rope_factor, config.rope_mscale)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """With `query_rank` queries have two matrices and a norm, otherwise one matrix."""
        queries = {"query_DA": matrix("embed", "query_features")}
        if config.query_rank:
            queries = {
                "query_down_DQ": matrix("embed", "query_latents"),
                "query_norm_Q": vector("query_latents", value=1.0),
                "query_up_QA": matrix("query_latents", "query_features"),
            }
        return {
            **queries,
            "down_DL": matrix("embed", "latents_and_key"),
            "norm_C": vector("latents", value=1.0),
            "key_up_CE": matrix("latents", "plain_key_features"),
            "value_up_CF": matrix("latents", "head_features"),
            "out_FD": matrix("head_features", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
        }

    @staticmethod
    def taken(config: GPTConfig) -> int:
        """Features of a token that are gathered: what queries are computed from, latents, and the rotary key."""
        return (config.query_rank or config.embed) + config.dim_sizes["latents_and_key"]

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add attention to x. `normed` is of this device's own tokens."""
        hooks, rank = info.hooks, self.config.dim_sizes["latents"]
        latent_BTL = matmul(normed_BTD, self.down_DL[...])
        latent_BTC = rms_scaled(latent_BTL[..., :rank], self.norm_C[...], EPSILON)
        if self.config.query_rank:
            query_up = self.query_up_QA[...]
            into_queries = rms_scaled(matmul(normed_BTD, self.query_down_DQ[...]), self.query_norm_Q[...], EPSILON)
        else:
            query_up, into_queries = self.query_DA[...], normed_BTD
        taken_BTI = hooks.all_tokens(jnp.concatenate([into_queries, latent_BTC, latent_BTL[..., rank:]], -1))
        split = taken_BTI.shape[-1] - latent_BTL.shape[-1]
        q_BTA, latent_BTC = matmul(taken_BTI[..., :split], query_up), taken_BTI[..., split : split + rank]
        key_BTR = self._rotated(taken_BTI[..., split + rank :], info)
        qkv = LatentQKV(
            self._queries(q_BTA, info),
            jnp.concatenate([latent_BTC, key_BTR], -1),
            self.key_up_CE[...],
            self.value_up_CF[...],
            rank,
        )
        mixed_BTF = hooks.attend(qkv, info.kernel, None if self.dense else info.reach)
        return add_branch(x_BTD, matmul(mixed_BTF, self.out_FD[...]), hooks), {}

    def _queries(self, q_BTA: Array, info: LayerInfo) -> Array:
        """Queries by head, with positions and YaRN's factor of the scores; they are residuals."""
        q_BTHK = q_BTA.reshape(*q_BTA.shape[:2], -1, self.config.head_dim)
        plain = self.config.head_dim - self.rotary.head_dim
        turned_BTHR = self._rotated(q_BTHK[..., plain:].reshape(*q_BTA.shape[:2], -1), info)
        q_BTHK = jnp.concatenate([q_BTHK[..., :plain], turned_BTHR.reshape(*q_BTHK.shape[:3], -1)], -1)
        factor = self.rotary.score_factor
        return checkpoint_name(q_BTHK if factor == 1 else (q_BTHK * factor).astype(q_BTHK.dtype), KEPT)

    def _rotated(self, x_BTE: Array, info: LayerInfo) -> Array:
        turned_BT1E: Any = rotated(x_BTE[:, :, None], self.rotary, info)
        return turned_BT1E[:, :, 0]
