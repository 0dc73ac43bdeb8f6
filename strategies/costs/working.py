"""Working arrays of a layer, at the peak of its backward pass, by part of the model.

A part of the model without an entry in `PARTS`, for its class or one that it is derived from, counts as none.
"""

from collections.abc import Callable

from strategies.model.attention.splash import LANES
from strategies.model.block import block_of, part_and_layer
from strategies.model.expert_rows import arrived, rows_of
from strategies.model.experts import Experts
from strategies.model.mlp import MLP, GatedMLP
from strategies.model.norm import LayerNorm, RMSNorm
from strategies.model.part import Part
from strategies.model.self_attention import Attention
from strategies.model.share import Share


def norm(share: Share) -> int:
    """X before scaling, and after it for all tokens that a matmul takes."""
    return (share.residual_tokens + share.tokens) * share.config.embed


def mlp(share: Share) -> int:
    """Three arrays around GELU, and its input when recomputed."""
    return (4 if share.train.remat == "full" else 3) * share.tokens * share.mlp


def gated_mlp(share: Share) -> int:
    """Gate, up, their product, and the gradients of gate and up."""
    return 5 * share.tokens * share.mlp


def experts(share: Share) -> int:
    """Rows of tokens and their gradients, arrays around SiLU, and the router's.

    Layers that are recomputed hold more of both, and what arrived from other devices.
    """
    config = share.config
    rows, hidden = rows_of(share) * config.embed, Experts.activated_elements(share)
    received = arrived(share)[0] * config.embed if share.experts > 1 else 0
    routes = 3 * share.tokens * config.dim_sizes["experts"]
    if share.train.remat == "full":
        return 4 * rows + 5 * hidden + share.tokens * config.embed + routes + received
    return (5 * rows + 6 * hidden + 3 * share.tokens * config.embed) // 2 + routes + received


def attention(share: Share) -> int:
    """Queries, keys, values, output and scores; the queries twice, and the projected output, when recomputed.

    A fused kernel has no scores. Those of splash attention take and give arrays of their own: queries, keys, values,
    output, and the gradients of all four; and the log-sum-exp of the scores, in all lanes.
    """
    features, scores = share.config.embed + share.attended_features, share.computed_keys
    if share.train.remat == "full":
        features += share.head_features
    if share.splash:
        features, scores = features + 2 * share.attended_features, LANES
    elif share.kernel != "xla":
        scores = 0
    return share.tokens * (features + scores * share.config.heads // share.tensors)


PARTS: dict[type[Part], Callable[[Share], int]] = {
    LayerNorm: norm,
    RMSNorm: norm,
    Attention: attention,
    MLP: mlp,
    GatedMLP: gated_mlp,
    Experts: experts,
}
"""Elements of the working arrays of parts of a block, and of those derived from them, by what a device computes."""


def part_elements(part: type[Part], share: Share) -> int:
    """Elements of the working arrays of a part, by the nearest class in `PARTS` that it is derived from."""
    known = (PARTS[kind] for kind in part.__mro__ if kind in PARTS)
    return next(known, lambda share: 0)(part.share_of(share))


def layer_elements(share: Share) -> int:
    """Elements at the peak of the backward pass of a block: working arrays of its parts, and the stream's gradient.

    The layers of a block of several run backward one after another.
    """
    layers = [0] * share.config.layers_in_block
    for name, part in block_of(share.config).parts.items():
        layers[part_and_layer(name)[1]] += part_elements(part, share)
    return share.tokens * share.config.embed + max(layers)
