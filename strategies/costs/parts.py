"""Costs of each part of the model on a device, by class: matmuls, residuals, working arrays.

layer.py maps parts to costs and adds them up. The functions take a `Share`, what a device computes of a layer for one
microbatch. expert_parts.py has the costs of experts.
"""

import math
from typing import NamedTuple

from strategies.core.share import Share
from strategies.gpt_config import GPTConfig
from strategies.model.attention.splash import LANES
from strategies.model.parts import Part
from strategies.model.weights import WeightSpec


class Matmul(NamedTuple):
    """`times` matmuls of one token with a weight each, given without stacking; they contract its first dim."""

    weight: WeightSpec
    times: int = 1

    def flops(self, config: GPTConfig) -> int:
        """Forward FLOPs per token."""
        return 2 * self.times * math.prod(config.dim_sizes[dim] for dim in self.weight.dims)


class PartCosts:
    """The costs of a part of a block. These are the defaults."""

    @staticmethod
    def matmuls(part: type[Part], config: GPTConfig) -> tuple[Matmul, ...]:
        """One token's matmuls with weights, in order. `Hooks.sum` completes the last if devices split its first dim."""
        return tuple(Matmul(weight) for weight in part.weights(config).values() if weight.is_matrix)

    @staticmethod
    def last_matmuls(config: GPTConfig) -> int:
        """Number of matmuls, at the end of `matmuls`, whose outputs are only added up."""
        return 1

    @staticmethod
    def rows(share: Share, matmul: Matmul) -> tuple[int, int]:
        """Rows of a matmul on a device, for a microbatch, and the number of such matmuls side by side."""
        return share.tokens, 1

    @staticmethod
    def activated_elements(share: Share) -> int:
        """Elements of each input of its activation function."""
        return 0

    @staticmethod
    def padding_flops(share: Share) -> tuple[int, int]:
        """Forward FLOPs per microbatch beyond `matmuls` and their recomputation, over devices that split hidden
        features.
        """
        return 0, 0

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Bytes kept from the forward to the backward pass, by `remat`."""
        return 0

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Elements that zb-h1 holds in addition to residuals, between the two halves of the backward pass.

        They are inputs and output gradients of matmuls, except those that reuse memory of residuals which the first
        half has consumed.
        """
        return 0

    @staticmethod
    def working_elements(share: Share) -> int:
        """Elements of its working arrays at the peak of a layer's backward pass."""
        return 0


class LayerNormCosts(PartCosts):
    """LayerNorm."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Mean and deviation in float32; with `remat="none"` also x before and after scaling, and the scale.

        After scaling x is float32; but a tensor axis without sequence parallelism takes and keeps it in the compute
        dtype.
        """
        tokens, embed = share.residual_tokens, share.config.embed
        if share.train.remat == "full":
            return 0
        statistics = 2 * 4 * tokens
        if share.train.remat == "dots":
            return statistics
        scaled = share.itemsize if share.tensors > 1 and not share.sequence_parallel else 4
        return statistics + (4 + scaled) * tokens * embed + 4 * embed

    @staticmethod
    def working_elements(share: Share) -> int:
        """X before scaling, and after scaling for all tokens that the following matmul takes."""
        return (share.residual_tokens + share.tokens) * share.config.embed


class RMSNormCosts(LayerNormCosts):
    """RMSNorm."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """The inverse in float32; with `remat="none"` also x after scaling and the scale, like LayerNorm."""
        if share.train.remat == "full":
            return 0
        normed = share.config.embed if share.train.remat == "none" else 0
        return LayerNormCosts.kept_bytes(share) - 4 * share.residual_tokens * (1 + normed)


class MLPCosts(PartCosts):
    """Two matmuls around a GELU."""

    @staticmethod
    def activated_elements(share: Share) -> int:
        """Hidden features."""
        return share.tokens * share.mlp

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """The input of GELU."""
        return 0 if share.train.remat == "full" else share.itemsize * share.tokens * share.mlp

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Gradients of both outputs, and inputs that are neither kept nor computed from what is kept."""
        return mlp_waiting_elements(share, results=1)

    @staticmethod
    def working_elements(share: Share) -> int:
        """Three arrays around GELU, and its input if recomputed."""
        return (4 if share.train.remat == "full" else 3) * share.tokens * share.mlp


class GatedMLPCosts(MLPCosts):
    """SwiGLU."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Outputs of the first two matmuls; with `remat="none"` also their gated product."""
        arrays = {"none": 3, "dots": 2, "full": 0}[share.train.remat]
        return arrays * share.itemsize * share.tokens * share.mlp

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Gradients of all outputs, and inputs that are neither kept nor computed from what is kept."""
        return mlp_waiting_elements(share, results=2)

    @staticmethod
    def working_elements(share: Share) -> int:
        """Gate, up, their product, and the gradients of gate and up."""
        return 5 * share.tokens * share.mlp


def mlp_waiting_elements(share: Share, results: int) -> int:
    """`waiting_elements` of an MLP whose hidden features are computed from `results` matmul outputs.

    With `remat="dots"` these are kept, and all their gradients wait in addition. With `remat="none"` gradients
    overwrite them; but with several outputs each gradient is computed from all, so XLA copies their buffers.
    """
    whole = 2 if share.train.remat == "full" or share.sequence_parallel else 1
    whole = 0 if share.reuses_residual_buffers else whole
    split = {"none": results if results > 1 else 0, "dots": results, "full": 1 + results}[share.train.remat]
    return share.tokens * (whole * share.config.embed + split * share.mlp)


class AttentionCosts(PartCosts):
    """Projections and attention with any kernel. scores.py has the FLOPs of scores."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Queries, keys, values, attention's output, and the sums of exponentials in float32.

        Ulysses also keeps the output as it arrived from other devices. A ring with a window keeps the keys and values
        that arrived.
        """
        if share.train.remat == "full":
            return 0
        outputs, keys = 2 if share.ulysses else 1, 2 * (share.tokens + share.earlier_tokens)
        kept = (1 + outputs) * share.tokens * share.head_features + keys * share.attended_key_features
        return share.itemsize * kept + 4 * share.tokens * share.config.heads // share.tensors

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Gradients of both outputs, and inputs not kept or recomputable. Kept q, k, v are overwritten by their
        gradients.
        """
        if share.reuses_residual_buffers:
            return 0
        split = share.attended_features if share.train.remat == "full" else 0
        return share.tokens * ((2 if share.sequence_parallel else 1) * share.config.embed + split)

    @staticmethod
    def working_elements(share: Share) -> int:
        """Queries, keys, values, output and scores; if recomputed, the queries twice and the projected output.

        A fused kernel has no scores. Splash attention's kernels use their own arrays: queries, keys, values, output,
        and the gradients of all four; and the log-sum-exp of the scores, in all lanes.
        """
        features, scores = share.config.embed + share.attended_features, share.computed_keys
        if share.train.remat == "full":
            features += share.head_features
        if share.splash:
            features, scores = features + 2 * share.attended_features, LANES
        elif share.kernel != "xla":
            scores = 0
        return share.tokens * (features + scores * share.config.heads // share.tensors)


class HeadNormCosts(AttentionCosts):
    """Attention with norms of heads."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """One norm per query head and per key head."""
        return normed_kept_bytes(share, (share.head_features + share.key_features) // share.config.head_dim)


class WidthNormCosts(AttentionCosts):
    """Attention with norms over all heads."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """One norm for queries and one for keys."""
        return normed_kept_bytes(share, 2)


def normed_kept_bytes(share: Share, norms: int) -> int:
    """`AttentionCosts.kept_bytes`, and a float32 number per norm and token.

    With `remat="none"` also queries and keys before the norm, and a scale for each feature. Otherwise Ulysses keeps
    them twice: before the norm, and as they arrived from other devices.
    """
    kept, features = AttentionCosts.kept_bytes(share), share.head_features + share.key_features
    if share.train.remat == "full":
        return kept
    kept += 4 * share.tokens * norms
    if share.train.remat == "none":
        return kept + (share.itemsize * share.tokens + 4) * features
    return kept + (share.itemsize * share.tokens * (features + share.key_features) if share.ulysses else 0)
