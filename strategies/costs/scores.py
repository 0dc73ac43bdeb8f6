"""FLOPs of attention scores: the matmuls of queries with keys and values, and their gradients.

A block of queries and keys has two such matmuls forward, four for gradients backward, and those that recompute scores
(Dao et al. 2022, section 3.1).
"""

from typing import NamedTuple

from strategies.core.plan import Plan
from strategies.core.share import Share, attention_shares


class Scores(NamedTuple):
    """FLOPs per token in all layers.

    Attributes:
        pair: of the two forward matmuls, by computed keys.
        all: of all matmuls without `remat`, by computed keys: two forward, four for gradients, and `again`.
        again: of matmuls that recompute scores and their gradients.
        forward, backward: of the pass's matmuls. XLA compiles some matmuls of a single key or query to none.
        recomputed: the part of the forward pass that a layer's backward pass repeats with `remat="full"`.
    """

    pair: int
    all: int
    again: int
    forward: int
    backward: int
    recomputed: int


def scores_of(plan: Plan) -> Scores:
    """Scores that a step computes, including masked ones.

    With `remat="full"` scores are recomputed only in fused kernels, because the backward pass has them otherwise; and
    for keys that went through a ring's loop, which the compiler does not merge. If that loop is inlined
    (`Share.loops_ring`), it merges all chunk pairs but one.
    """
    attentions = [_of_attention(share) for share in attention_shares(plan.share)]
    return Scores(*(plan.config.all_blocks * sum(each) for each in zip(*attentions, strict=True)))


def _of_attention(share: Share) -> Scores:
    """Scores of one attention part of one block. Queries and keys have other features than values with latents."""
    wide, narrow = (_matmul(share, features) for features in (share.config.query_features, share.config.head_features))
    # Scores, and with splash attention also their gradients, are computed once or twice more.
    again = 2 * wide + narrow if share.splash else wide
    pair = wide + narrow
    if share.kernel != "xla":
        return Scores(pair, 3 * pair + again, again, pair, 2 * pair + again, pair)
    (scores, keys, queries), (values, mixing, of_values) = (_contractions(share, each) for each in (wide, narrow))
    pairs, ring = 2 * share.ring + 1, share.ring > 2 and not share.skipping
    arrived = scores * (pairs - 3 if share.loops_ring else 1) // pairs if ring else 0
    backward = scores + values + keys + queries + of_values
    return Scores(pair, 3 * pair + again, again, scores + mixing, backward, mixing + arrived)


def _matmul(share: Share, features: int) -> int:
    """FLOPs of one matmul of scores with `features` of all heads, per token in one attention part.

    On a ring of n devices a device computes 2n + 1 of its 4n pairs of chunks (attention/ring.py); on one device three
    of four (attention/dense.py). An odd number of tokens is not split: all pairs are computed. Causality masks out a
    part of two of the ring's pairs; cuDNN skips a quarter of these if the number of tokens is even. With a window or a
    stride a query computes `Reach.computed_keys`; splash attention computes every block with any of them.
    """
    config, ring = share.config, share.ring
    square = 2 * features * share.computed_keys
    if share.skipping or share.splash or config.sequence % 2:
        return square
    skipped = 2 if ring > 1 and share.kernel == "cudnn" and share.chunk % 2 == 0 else 0
    return square * (4 * (2 * ring + 1) - skipped) // (16 * ring)


def _contractions(share: Share, matmul: int) -> tuple[int, int, int]:
    """FLOPs of a matmul that contracts features, keys, or queries.

    XLA compiles a contraction of one key or one query to an elementwise multiplication, not a matmul, and with one
    query and one key to nothing. A block's queries are those of all heads that share its KV head (attention/dense.py).
    """
    tokens = share.config.sequence
    if share.skipping:
        queries, before = share.skipping.block(tokens // share.pieces)
        keys = queries * (before + 1)
        near = matmul * keys // share.computed_keys
    else:
        queries = keys = share.chunk if share.ring > 1 else tokens
        near = matmul
    queries *= share.query_features // share.attended_key_features
    return matmul - near * (keys == queries == 1), matmul - near * (keys == 1), matmul - near * (queries == 1)
