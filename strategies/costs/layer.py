"""Costs of a model's blocks: sums over their parts, forward and backward.

`config` is a whole model; a `Share` is what one device computes of one of its layers for one microbatch. A part has the
costs of its nearest base class in `COSTS`. Without any, it costs the matmuls of its weights and keeps nothing.
"""

from functools import cache

from strategies.core.plan import Plan
from strategies.core.share import Share, share_of
from strategies.costs.expert_parts import ClampedExpertsCosts, ExpertsCosts
from strategies.costs.latent_parts import LatentAttentionCosts
from strategies.costs.parts import (
    AttentionCosts,
    GatedMLPCosts,
    HeadNormCosts,
    LayerNormCosts,
    Matmul,
    MLPCosts,
    PartCosts,
    RMSNormCosts,
    WidthNormCosts,
)
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.block import Block, block_of, part_and_layer
from strategies.model.clamped_experts import ClampedExperts
from strategies.model.experts import Experts
from strategies.model.latent_attention import LatentAttention
from strategies.model.parts import MLP, GatedMLP, LayerNorm, Part, RMSNorm
from strategies.model.self_attention import Attention, HeadNormAttention, WidthNormAttention

COSTS: dict[type[Part], type[PartCosts]] = {
    LayerNorm: LayerNormCosts,
    RMSNorm: RMSNormCosts,
    MLP: MLPCosts,
    GatedMLP: GatedMLPCosts,
    Attention: AttentionCosts,
    HeadNormAttention: HeadNormCosts,
    WidthNormAttention: WidthNormCosts,
    LatentAttention: LatentAttentionCosts,
    Experts: ExpertsCosts,
    ClampedExperts: ClampedExpertsCosts,
}
"""Costs by part of the model; subclasses of the part inherit them."""


def costs_of(part: type[Part]) -> type[PartCosts]:
    """The costs of a part, or of its nearest base class that has any."""
    return next((COSTS[kind] for kind in part.__mro__ if kind in COSTS), PartCosts)


@cache
def matmuls_of(part: type[Part], config: GPTConfig) -> tuple[Matmul, ...]:
    """One token's matmuls with a part's weights, in order."""
    return costs_of(part).matmuls(part, config)


@cache
def matmuls(block: type[Block], config: GPTConfig) -> tuple[Matmul, ...]:
    """One token's matmuls with a block's weights, in order."""
    return tuple(matmul for part in block.branches() for matmul in matmuls_of(part, config))


@cache
def _flops(block: type[Block], config: GPTConfig) -> tuple[int, ...]:
    """Forward FLOPs per token of each matmul, in order."""
    return tuple(matmul.flops(config) for matmul in matmuls(block, config))


def matmul_flops(config: GPTConfig) -> int:
    """Forward FLOPs per token of a block's matmuls with weights."""
    return sum(_flops(block_of(config), config))


def recomputed_flops(config: GPTConfig) -> int:
    """The part of `matmul_flops` that `remat="full"` repeats: all but the last matmuls, whose outputs are
    not needed.
    """
    block = block_of(config)
    return sum(_flops(block, config)[: -costs_of(block.branches()[-1]).last_matmuls(config)])


def score_flops(config: GPTConfig) -> int:
    """FLOPs per token of a block's two score matmuls, with all attended tokens: 2 H (K + V) T, or 2 H (K + V) W.

    H are heads, K and V features of a key and of a value. Every token counts the last token's keys, as if attention
    were not causal (`Reach.most_keys`).
    """
    return _score_flops(block_of(config), config)


@cache
def _score_flops(block: type[Block], config: GPTConfig) -> int:
    reaches = block.reaches(config)
    keys = (reach.most_keys(config.sequence) if reach else config.sequence for reach in reaches)
    return 2 * (config.query_features + config.head_features) * sum(keys)


def expansion_flops(config: GPTConfig) -> int:
    """Forward FLOPs per token to compute a layer's keys and values from latents."""
    sizes = config.dim_sizes
    return 2 * sizes["latents"] * (sizes["plain_key_features"] + sizes["head_features"])


def join_flops(config: GPTConfig) -> int:
    """Forward FLOPs of one token's matmul that joins the inputs of the MTP block (model/mtp.py)."""
    sizes = config.dim_sizes
    return 2 * sizes["mtp_layers"] * sizes["mtp_inputs"] * sizes["embed"]


def logit_flops(config: GPTConfig, padded_vocab: int | None = None) -> int:
    """Forward FLOPs of one token's logits; without padding by default."""
    return 2 * config.embed * (padded_vocab or config.vocab)


def flops_per_token(config: GPTConfig) -> int:
    """Model FLOPs to train on one token, without recomputation. Attention counts in full, as if it were not causal.

    6 FLOPs for each weight of a matmul, and 6 layers x (query features + value features) x sequence for attention
    (Chowdhery et al. 2022, "PaLM", appendix B). An embedding lookup costs none. Multi-token prediction computes logits
    twice.
    """
    layer = matmul_flops(config) + score_flops(config)
    flops = 3 * (config.blocks * layer + logit_flops(config) + join_flops(config))
    flops += flops_per_token(config.lead) - 3 * logit_flops(config) if config.lead else 0
    return flops + (flops_per_token(config.mtp) if config.mtp else 0)


def choice_flops_per_token(config: GPTConfig) -> int:
    """The chosen experts' part of `flops_per_token`: what a model saves that drops all choices."""
    chosen = (each for each in matmuls(block_of(config), config) if "expert_mlp" in each.weight.dims)
    return 3 * (config.all_blocks - config.dense_layers) * sum(each.flops(config) for each in chosen)


def padding_flops(share: Share) -> tuple[int, int]:
    """Forward FLOPs per microbatch beyond `matmul_flops`, and the part in all branches but the last, for
    recomputation.
    """
    branches = block_of(share.config).branches()
    forward, again = zip(*(costs_of(part).padding_flops(share) for part in branches), strict=True)
    return sum(forward), sum((*forward[:-1], again[-1]))


def kept_bytes(share: Share) -> int:
    """Bytes of the residuals of one layer for one microbatch.

    The count follows Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
    equations 1 to 6. Attention scores are never kept, and there is no dropout. In addition to its parts' residuals a
    block keeps its input, and of each branch but the last what it adds to the residual stream, or the stream after it.
    After the last branch the stream is the input of the next layer, which keeps it.
    """
    block = block_of(share.config)
    kept = 1 if share.train.remat == "full" else len(block.branches())
    streams = kept * share.itemsize * share.residual_tokens * share.config.embed
    return streams + sum(costs_of(part).kept_bytes(share_of(part, share)) for part in block.parts.values())


def waiting_elements(share: Share) -> int:
    """Elements that zb-h1 holds in addition to residuals between the backward passes for inputs and weights."""
    parts = block_of(share.config).parts.values()
    return sum(costs_of(part).waiting_elements(share_of(part, share)) for part in parts)


def working_elements(share: Share) -> int:
    """Elements at the peak of a block's backward pass, which runs layer by layer: working arrays and dx."""
    layers = [0] * share.config.layers_in_block
    for name, part in block_of(share.config).parts.items():
        layers[part_and_layer(name)[1]] += costs_of(part).working_elements(share_of(part, share))
    return share.tokens * share.config.embed + max(layers)


def require_known_split(plan: Plan) -> None:
    """Refuse a split of dims that the formulas do not cover, unless its axis states traffic."""
    silent = [dim for axis in plan.active if not axis.traffic for dim in axis.dims]
    if unknown := [dim for dim in ("embed", "qkv", "sequence") if dim in silent]:
        problem = f"there are no formulas for axes that split {unknown[0]}"
        raise Infeasible(f"{problem}; state what they send, or do not split this dim")
    contracted = (matmuls_of(branch, plan.config)[-1].weight.dims[0] for branch in plan.block.branches())
    branches = dict.fromkeys(contracted)
    if len({plan.over(plan.axes_of(dim)) for dim in branches}) > 1:
        raise Infeasible(f"there are no formulas for {' and '.join(branches)} over different axes; use the same axes")
