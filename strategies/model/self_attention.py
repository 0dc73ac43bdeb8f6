"""The attention branch of a block: projections around causal self-attention.

Dims: B batch, T tokens, D embed, C = 3 (query, key, value), A = heads x head dim, J KV heads, K head dim.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.attention import QKV
from strategies.model.hooks import LayerInfo
from strategies.model.layers import Result
from strategies.model.parts import Part, add_bias, add_branch, rms_scaled
from strategies.model.remat import GATHERED, KEPT
from strategies.model.rotary import Rotary, Yarn, rotated
from strategies.model.weights import WeightSpec, broadcast_to_shards, matmul, matrix, reshape, vector


class Attention(Part):
    """Self-attention of GPT-2, with biases. A tensor axis splits its heads."""

    attends = True
    qkv_DCA: nnx.Param
    qkv_bias_CA: nnx.Param
    out_AD: nnx.Param
    out_bias_D: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """The output projection's initial deviation is smaller by sqrt(2 layers).

        Queries, keys and values are one weight, laid out as in `QKV`: for each KV head its queries, key and value. With
        fewer KV heads than query heads the last dim has fewer features than A, and the dim before it has more entries.
        """
        return {
            "qkv_DCA": matrix("embed", "qkv", "key_features"),
            # The backward pass needs queries, keys and values with their biases.
            "qkv_bias_CA": vector("qkv", "key_features", backward="recomputation"),
            "out_AD": matrix("head_features", "embed", deviation=0.02 * (2 * config.layers) ** -0.5),
            "out_bias_D": vector("embed", backward="recomputation"),
        }

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add attention to x. `Hooks.sum` completes the output projection over devices that split the heads."""
        hooks = info.hooks
        qkv_BTCA = self.projected(normed_BTD, info)
        qkv = QKV(hooks.projected(qkv_BTCA), self.config.head_dim, self.sinks)
        reach = None if self.dense else info.reach
        mixed_BTA = hooks.attend(qkv, info.kernel, reach)
        return add_branch(x_BTD, matmul(mixed_BTA, self.out_AD[...]), hooks, getattr(self, "out_bias_D", None)), {}

    def projected(self, normed_BTD: Array, info: LayerInfo) -> Array:
        """Attention's queries, keys and values.

        cuDNN's kernel takes three arrays. Out of the result of one matmul they would be copied, so each has its own
        matmul, and XLA cancels the stack against the slices of `QKV.apart`.
        """
        if not info.attends_apart or self.qkv_DCA.shape[1] > 3:  # of grouped queries there would be many matmuls
            return self.prepared(info.hooks.project(normed_BTD, self.qkv_DCA[...]), info)
        matrices, biases = jnp.unstack(self.qkv_DCA[...], axis=1), jnp.unstack(self.qkv_bias_CA[...])
        if info.keeps_slices:  # nothing was gathered, but what has this name is kept
            matrices = [checkpoint_name(w_DA, GATHERED) for w_DA in matrices]
        parts = [
            checkpoint_name(add_bias(matmul(normed_BTD, w_DA), bias_A), KEPT)
            for w_DA, bias_A in zip(matrices, biases, strict=True)
        ]
        return jnp.stack(parts, 2)

    @property
    def sinks(self) -> Array | None:
        """The sink of each head (`QKV.sink_H`); None without sinks."""
        return None

    def prepared(self, qkv_BTCA: Array, info: LayerInfo) -> Array:
        """Turn the projection into attention's queries, keys and values, which are residuals."""
        return checkpoint_name(add_bias(qkv_BTCA, self.qkv_bias_CA), KEPT)


class RotaryAttention(Attention):
    """Self-attention of Llama: rotary positions, no biases (Touvron et al. 2023, section 2.2)."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.rope_factor)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of `Attention` without biases."""
        return {name: spec for name, spec in Attention.weights(config).items() if spec.is_matrix}

    def projected(self, normed_BTD: Array, info: LayerInfo) -> Array:
        """One matmul, because a pass over its result rotates queries and keys anyway."""
        return self.prepared(info.hooks.project(normed_BTD, self.qkv_DCA[...]), info)

    def prepared(self, qkv_BTCA: Array, info: LayerInfo) -> Array:
        """Rotate queries and keys."""
        qk_BTCA: Array = rotated(qkv_BTCA[:, :, :-1], self.rotary, info)
        return checkpoint_name(jnp.concatenate([qk_BTCA, qkv_BTCA[:, :, -1:]], 2), KEPT)


class BiasedRotaryAttention(RotaryAttention):
    """Self-attention of Qwen2: Llama's, with biases of queries, keys and values."""

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of `Attention` without the output bias."""
        return {name: spec for name, spec in Attention.weights(config).items() if name != "out_bias_D"}

    def prepared(self, qkv_BTCA: Array, info: LayerInfo) -> Array:
        """Add the biases, and rotate queries and keys."""
        return super().prepared(add_bias(qkv_BTCA, self.qkv_bias_CA), info)


class SinkAttention(BiasedRotaryAttention):
    """Self-attention of gpt-oss (OpenAI 2025, "gpt-oss", section 2.2): all biases, YaRN, and a sink for each head."""

    sink_H: nnx.Param

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.rotary = Yarn(config.head_dim, config.rope_theta, config.rope_factor)

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of `Attention`, and the sinks."""
        return {**Attention.weights(config), "sink_H": vector("heads")}

    @property
    def sinks(self) -> Array:
        """The sink of each head."""
        return self.sink_H[...]


class NormAttention(RotaryAttention):
    """Self-attention of Llama with a norm of queries and of keys before they are rotated (QK-norm)."""

    def prepared(self, qkv_BTCA: Array, info: LayerInfo) -> Array:
        """Normalise and rotate queries and keys. Their unnormalised values are residuals of the norm."""
        qkv_BTCA = checkpoint_name(qkv_BTCA, KEPT)
        qk_BTCA = self.normed(qkv_BTCA[:, :, :-1], info)
        return jnp.concatenate([rotated(qk_BTCA, self.rotary, info), qkv_BTCA[:, :, -1:]], 2)

    def normed(self, qk_BTCA: Array, info: LayerInfo) -> Array:
        """Normalise queries and keys."""
        raise NotImplementedError


class HeadNormAttention(NormAttention):
    """Self-attention of Qwen3: an RMSNorm of each head. Query heads share one scale, and key heads another."""

    q_norm_K: nnx.Param
    k_norm_K: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of `RotaryAttention`, and two scales."""
        scale = vector("head_size", value=1.0)
        return {**RotaryAttention.weights(config), "q_norm_K": scale, "k_norm_K": scale}

    def normed(self, qk_BTCA: Array, info: LayerInfo) -> Array:
        """Normalise each head.

        The scales are broadcast to heads, so the backward pass sums their gradients over tokens first. If XLA's GPU
        backend sums over tokens and heads at once, it also transposes everything computed with that sum.
        """
        qk_BTCJK = qk_BTCA.reshape(*qk_BTCA.shape[:3], -1, self.config.head_dim)
        scales = (broadcast_to_shards(scale_K[...], qk_BTCJK[:, :, 0]) for scale_K in (self.q_norm_K, self.k_norm_K))
        q_norm_JK, k_norm_JK = (
            jnp.broadcast_to(scale, jnp.broadcast_shapes(scale.shape, qk_BTCJK.shape[-2:])) for scale in scales
        )
        scale_CJK = jnp.stack([*[q_norm_JK] * (qk_BTCA.shape[2] - 1), k_norm_JK], -3)
        return rms_scaled(qk_BTCJK, scale_CJK, self.config.norm_epsilon).reshape(qk_BTCA.shape)


class WidthNormAttention(NormAttention):
    """Self-attention of OLMoE: an RMSNorm over all query heads, and one over all key heads.

    Devices that split the heads average the means of squares (`Hooks.mean`), one for queries and one for keys.
    """

    means = 2
    qk_norm_CA: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of `RotaryAttention`, and a scale for each feature of queries and keys."""
        return {**RotaryAttention.weights(config), "qk_norm_CA": vector("qk", "key_features", value=1.0)}

    def normed(self, qk_BTCA: Array, info: LayerInfo) -> Array:
        """Normalise queries, and keys."""
        mean, parts = info.hooks.mean, (slice(0, -1), slice(-1, None))
        normed = [
            rms_scaled(
                qk_BTCA[:, :, part].reshape(*qk_BTCA.shape[:2], -1),
                reshape(self.qk_norm_CA[part], (-1,)),
                self.config.norm_epsilon,
                mean,
            )
            for part in parts
        ]
        return jnp.concatenate(normed, -1).reshape(qk_BTCA.shape)
