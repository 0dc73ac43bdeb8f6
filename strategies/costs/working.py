"""Working arrays of a layer, at the peak of the backward pass, as XLA's CPU backend plans them.

A part of the model without an entry in `PARTS`, for its class or one that it is derived from, counts as none.
"""

from collections.abc import Callable
from typing import NamedTuple

from strategies.model.attention.splash import LANES
from strategies.model.block import block_of, part_and_layer
from strategies.model.expert_rows import arrived, loops_over_blocks, rows_of
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
    """Rows of tokens and their gradients, arrays around SiLU, and the router's; fitted to compiled programs.

    An expert axis holds what it exchanges once more, unless it is recomputed; tokens that are gathered twice then.
    Blocks that are recomputed hold four arrays of rows, five around SiLU and two of the shared expert, and what arrived
    from other devices.
    """
    config, full = share.config, share.train.remat == "full"
    rows, tokens = rows_of(share), share.tokens * config.embed
    routes = 3 * share.tokens * config.dim_sizes["experts"]
    if full and share.grouped_matmuls:
        received = arrived(share)[0] * config.embed if share.experts > 1 else 0
        hidden = 5 * rows * share.expert_mlp + 2 * share.tokens * share.shared_mlp
        return 4 * rows * config.embed + hidden + tokens + routes + received
    hidden = Experts.activated_elements(share)
    gathered = share.gathered_tokens * config.embed
    if full:
        return (11 * rows * config.embed + 21 * hidden) // 4 + tokens + routes + 2 * gathered
    exchanged = gathered or (rows * config.embed if share.experts > 1 else 0)
    return (10 * rows * config.embed + 12 * hidden + 6 * tokens) // 4 + routes + exchanged


def experts_in_own_pass(share: Share) -> int:
    """What the loops of grouped matmuls read and write besides, rows and matrices; fitted to compiled programs.

    A loop takes arrays that are in memory: what would be part of a matmul exists by itself. With prefetch matrices are
    copied for loops that recompute. Where a tensor axis splits the matrices there is one array of rows less, unless an
    expert axis splits them, too.
    """
    if not loops_over_blocks(share):
        return 0
    remat, embed = share.train.remat, share.config.embed
    matrix = share.held_experts * embed * share.expert_mlp
    copies = {"none": 2, "dots": 5, "full": 8}[remat] if share.train.prefetch == "on" else 2
    arrays = {"none": 2, "dots": 3, "full": 1}[remat] - (share.tensors > 1 and share.experts == 1)
    return copies * matrix + arrays * rows_of(share) * embed


def experts_of_another_layer(share: Share) -> int:
    """Rows of tokens, which depend on no gradient; the outputs of loops over blocks, two of rows and one of features.

    Compilers copy or compute rows, and initialise what loops write, before another layer of the block runs backward.
    Recomputation of the whole block comes before the backward pass of any of its layers.
    """
    if share.train.remat == "full":
        return experts(share)
    rows, embed = rows_of(share), share.config.embed
    return rows * (3 * embed + share.expert_mlp) if loops_over_blocks(share) else rows * embed


def attention(share: Share) -> int:
    """Queries, keys, values, output and scores; the queries twice, and the projected output, when recomputed.

    A ring also holds the keys and values of the next hop, and the scores of all pairs of chunks that are computed
    at once. A fused kernel has no scores. The kernels of splash attention take and give arrays of their own: queries,
    keys, values, output, and the gradients of all four; and the log-sum-exp of the scores, in all lanes.
    """
    features, scores = share.config.embed + share.attended_features, share.computed_keys
    if share.train.remat == "full":
        features += share.head_features
    if share.splash:
        features, scores = features + 2 * share.attended_features, LANES
    elif share.kernel != "xla":
        scores = 0
    elif share.skipping:
        # Keys and values once for each block that attends to them, and their gradients.
        features += 2 * (_key_copies(share) + 1) * share.key_features
    elif share.ring > 1:
        features, scores = features + 2 * share.key_features, share.chunk * _pairs_at_once(share) // 2
    return share.tokens * (features + scores * share.config.heads // share.tensors)


def standalone_attention(share: Share) -> int:
    """Scores, the array that replaces masked ones, and the mask in bytes; with five arrays, and copies of keys.

    For a single head of keys the compiler copies the scores once more. A ring masks few scores. It holds the scores of
    each pair of chunks and their gradients; queries, output, and the gradients of both; keys and values of the device
    and of two hops, and their gradients of two hops; and the three gradients of a pair.
    """
    if share.kernel != "xla":
        return 0
    heads, tokens = share.config.heads // share.tensors, share.config.sequence
    if share.ring > 1 and not share.skipping:
        features = (4 + 1) * share.head_features + (3 * 2 + 2 * 2 + 2) * share.key_features
        return share.tokens * (features + _pairs_at_once(share) * share.chunk * heads)
    keys, features = share.computed_keys, share.head_features + share.attended_features
    if share.skipping:
        features += 2 * _key_copies(share) * share.key_features
    elif tokens % 2 == 0:
        keys = tokens * 3 // 4  # two blocks, of which one has half of the keys
    key_heads = share.attended_key_features // share.config.head_dim // (share.contexts if share.ulysses else 1)
    quarters = 13 if key_heads == 1 else 9
    return share.tokens * (features + quarters * keys * heads // 4)


def _key_copies(share: Share) -> int:
    """How many times keys and values exist where blocks of queries attend to those before them, too."""
    assert share.skipping
    return share.skipping.block(share.config.sequence // share.pieces)[1] + 1


def _pairs_at_once(share: Share) -> int:
    """Pairs of chunks that depend on nothing of each other: three of the device's own keys, and two of the last hop.

    With three devices or more, a loop over hops is between them.
    """
    return 5 if share.ring == 2 else 3


def none(share: Share) -> int:
    """No arrays."""
    return 0


class Working(NamedTuple):
    """Elements of the working arrays of a part of the model, by functions of what a device computes of a layer.

    Attributes:
        elements: those that it holds at the peak of the whole layer.
        own_pass_elements: those that it also holds then if the peak is in its own backward pass.
        standalone_peak_elements: those at the peak of this part by itself, while the other parts hold nothing.
        of_another_layer: those that it holds while another layer of the block runs backward; None for `elements`.
    """

    elements: Callable[[Share], int] = none
    own_pass_elements: Callable[[Share], int] = none
    standalone_peak_elements: Callable[[Share], int] = none
    of_another_layer: Callable[[Share], int] | None = None


PARTS: dict[type[Part], Working] = {
    **dict.fromkeys((LayerNorm, RMSNorm), Working(norm)),
    Attention: Working(attention, standalone_peak_elements=standalone_attention),
    MLP: Working(mlp),
    GatedMLP: Working(gated_mlp),
    Experts: Working(experts, experts_in_own_pass, of_another_layer=experts_of_another_layer),
}
"""The working arrays of parts of a block, and of those derived from them (`working_of`)."""


def working_of(part: type[Part]) -> Working:
    """The working arrays of a part, or of the nearest class that it is derived from."""
    return next((PARTS[kind] for kind in part.__mro__ if kind in PARTS), Working())


def layer_elements(share: Share) -> int:
    """Elements held at the peak of the backward pass of a block: working arrays of its parts, the stream's gradient.

    Layers that alternate run backward one after another (gpt-oss has two of experts).
    """
    named = block_of(share.config).parts.items()
    parts = [(working_of(part), part.share_of(share), part_and_layer(name)[1]) for name, part in named]

    def together(running: int) -> int:
        """Elements while one layer of the block runs backward."""
        return sum(
            (working.elements if layer == running else working.of_another_layer or working.elements)(own)
            for working, own, layer in parts
        )

    most = max(map(together, range(share.config.layers_in_block)))
    most += max(working.own_pass_elements(own) for working, own, _ in parts)
    alone = max(working.standalone_peak_elements(own) for working, own, _ in parts)
    return share.tokens * share.config.embed + max(most, alone)
