"""FLOPs of attention scores: of the matmuls of queries with keys and values, and of their gradients.

A block of queries and keys has two such matmuls forward, four for gradients backward, and those that compute scores
again (Dao et al. 2022, section 3.1).
"""

from typing import NamedTuple

from strategies.core.plan import Plan
from strategies.core.share import Share, attention_shares
from strategies.model.attention.splash import BACKWARD_MATMULS


class Scores(NamedTuple):
    """FLOPs for a token in all layers.

    Attributes:
        matmul: of one matmul, by the keys that are computed.
        times: how many matmuls there are without `remat`: two forward, four for gradients, and those that compute
            scores again.
        forward, backward: of the matmuls of the pass. In blocks of one key, or one query, XLA compiles some as none.
        recomputed: of the forward pass that the backward pass of a layer repeats with `remat="full"`.
    """

    matmul: int
    times: int
    forward: int
    backward: int
    recomputed: int


def scores_of(plan: Plan) -> Scores:
    """What a step does, masked scores included.

    With `remat="full"` the scores themselves are not recomputed, for the backward pass has them, but in fused kernels;
    and the compiler does not find those of keys that went through a ring's loop. Where that is inlined
    (`Share.loops_ring`) it finds those of all pairs of chunks but one.
    """
    attentions = [_of_attention(share) for share in attention_shares(plan.share)]
    matmul, _, *passes = (plan.config.all_blocks * sum(each) for each in zip(*attentions, strict=True))
    return Scores(matmul, attentions[0].times, *passes)


def _of_attention(share: Share) -> Scores:
    """Of one attention of one block."""
    matmul = _matmul(share)
    backward = BACKWARD_MATMULS if share.splash else 5
    if share.kernel != "xla":
        return Scores(matmul, 2 + backward, 2 * matmul, backward * matmul, 2 * matmul)
    features, keys, queries = _contractions(share, matmul)
    pairs, ring = 2 * share.ring + 1, share.ring > 2 and not share.skipping
    again = pairs - 3 if share.loops_ring else 1
    arrived = features * again // pairs if ring else 0
    return Scores(matmul, 2 + backward, features + keys, 2 * features + keys + 2 * queries, keys + arrived)


def _matmul(share: Share) -> int:
    """FLOPs of one matmul of scores, for a token in one attention.

    On a ring of n devices a device computes 2n + 1 of its 4n pairs of chunks (attention/ring.py); on one device three
    of four (attention/dense.py). An odd number of tokens is not split: all pairs are computed. Causality masks out a
    part of two of the ring's pairs: of an even number of tokens cuDNN skips a quarter of these. With a window or a
    stride a query computes `Reach.computed_keys`, and with splash attention the blocks that have any.
    """
    config, ring = share.config, share.ring
    square = 2 * config.head_features * share.computed_keys
    if share.skipping or share.splash or config.sequence % 2:
        return square
    skipped = 2 if ring > 1 and share.kernel == "cudnn" and share.chunk % 2 == 0 else 0
    return square * (4 * (2 * ring + 1) - skipped) // (16 * ring)


def _contractions(share: Share, matmul: int) -> tuple[int, int, int]:
    """FLOPs of a matmul that contracts features, of one that contracts keys, and of one that contracts queries.

    Contracting one key, or one query, multiplies elements: XLA compiles no matmul. Of one query and one key it compiles
    none at all. The queries of a block are those of all heads that share its head of keys (attention/blocks.py).
    """
    tokens = share.config.sequence
    if share.skipping:
        queries, before = share.skipping.block(tokens // share.pieces)
        keys = queries * (before + 1)
        near = matmul * keys // share.computed_keys
    else:
        queries = keys = share.chunk if share.ring > 1 else tokens
        near = matmul
    queries *= share.head_features // share.attended_key_features
    return matmul - near * (keys == queries == 1), matmul - near * (keys == 1), matmul - near * (queries == 1)
