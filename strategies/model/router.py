"""Routers: which experts a token goes to, with which weights, and in which rows of the experts.

Dims: N tokens, E experts, k experts per token, G groups of tokens, M = k N / G choices of a group, C capacity,
S blocks, R rows of all buffers or blocks, or of one block, n devices.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from strategies.gpt_config import GPTConfig, Router, zipf_exponent

TINY = 1e-20
"""Keeps sums of sigmoids that are all zero in float32 from being divided by, as in DeepSeek-V3."""


class Kind(NamedTuple):
    """How a router scores experts, and makes weights of the scores of those that it chooses.

    Attributes:
        sigmoid: scores are sigmoids of the logits, instead of their softmax over all experts.
        renormalised: the weights of a token's experts are divided by their sum.
    """

    sigmoid: bool = False
    renormalised: bool = False


KINDS: Mapping[Router, Kind] = {
    "softmax": Kind(),
    "renormalised": Kind(renormalised=True),
    "sigmoid": Kind(sigmoid=True, renormalised=True),
}
"""By `GPTConfig.router`: that of OLMoE (Muennighoff et al. 2024); that of Mixtral (Jiang et al. 2024) and Qwen3, which
is also a softmax over the logits of the chosen experts; and that of DeepSeek-V3 (2024), section 2.1.2."""


class Routes(NamedTuple):
    """What a router decides.

    Attributes:
        weights_Nk: of the experts of each token, float32.
        experts_Nk: their indices, by falling score (plus bias) unless the routing is forced.
        probs_NE: scores of all experts, with sum one for each token.
        log_z_N: logarithm of the denominator of the softmax over experts.
    """

    weights_Nk: Float[Array, "N k"]
    experts_Nk: Int[Array, "N k"]
    probs_NE: Float[Array, "N E"]
    log_z_N: Float[Array, " N"]


def choose(
    logits_NE: Float[Array, "N E"],
    config: GPTConfig,
    forced_Tk: Int[Array, "T k"] | None = None,
    bias_E: Float[Array, " E"] | None = None,
) -> Routes:
    """Choose experts for each token by score plus bias, or take those that are forced on each position, in float32."""
    kind, logits_NE = KINDS[config.router], logits_NE.astype(jnp.float32)
    log_z_N = jax.nn.logsumexp(logits_NE, axis=-1)
    scores_NE = jax.nn.sigmoid(logits_NE) if kind.sigmoid else jnp.exp(logits_NE - log_z_N[:, None])
    if forced_Tk is None and bias_E is None and config.router_groups == 1:
        weights_Nk, experts_Nk = lax.top_k(scores_NE, config.experts_per_token)
    else:
        if forced_Tk is None:
            experts_Nk = _chosen(lax.stop_gradient(scores_NE if bias_E is None else scores_NE + bias_E), config)
        else:
            # Like learned choices they depend on the scores: otherwise XLA moves what they cost out of the loop.
            forced_Tk = forced_Tk + (0 * scores_NE[0, 0]).astype(jnp.int32)
            experts_Nk = jnp.tile(forced_Tk, (len(scores_NE) // len(forced_Tk), 1))
        weights_Nk = jnp.take_along_axis(scores_NE, experts_Nk, axis=1)
    if kind.renormalised:
        weights_Nk = config.routed_scale * weights_Nk / (weights_Nk.sum(-1, keepdims=True) + TINY)
    probs_NE = scores_NE / (scores_NE.sum(-1, keepdims=True) + TINY) if kind.sigmoid else scores_NE
    return Routes(weights_Nk, experts_Nk, probs_NE, log_z_N)


def _chosen(scores_NE: Float[Array, "N E"], config: GPTConfig) -> Int[Array, "N k"]:
    """The experts with the highest scores, among those of a token's best groups.

    A group's score is the sum of its two highest.
    """
    groups = config.router_groups
    if groups > 1:
        scores_NGe = scores_NE.reshape(len(scores_NE), groups, -1)
        group_NG = lax.top_k(scores_NGe, min(2, scores_NGe.shape[-1]))[0].sum(-1)
        best_Ng = lax.top_k(group_NG, config.groups_per_token)[1]
        among_NG = (best_Ng[..., None] == jnp.arange(groups)).any(1)
        scores_NE = jnp.where(among_NG[..., None], scores_NGe, -jnp.inf).reshape(scores_NE.shape)
    return lax.top_k(scores_NE, config.experts_per_token)[1]


RESOLUTION = 2**20
"""Shares of experts in a forced routing are multiples of 1 / RESOLUTION: integers, so that all programs agree."""
GOLDEN = 2_654_435_769
"""2^32 over the golden ratio. The multiples of it, modulo 2^32, are spread evenly (Knuth, "The Art of Computer
Programming", section 6.4)."""


def forced(config: GPTConfig, positions_T: Int[Array, " T"]) -> Int[Array, "T k"]:
    """The experts of positions of a sequence, where routing is not learned. Those of a position are distinct.

    They depend on the position alone. So all layers and sequences, and all strategies and meshes, route alike, and the
    router learns from its scores of these experts. Which expert has which rank is drawn, with the same seed always.

    "one" is the k experts of the lowest ranks. "balanced" takes the experts in turn. In "zipf=X" an expert has the
    share of choices of `zipf_shares`; each position takes k points at distance one on the line of these shares
    (systematic sampling, Madow 1949), and consecutive positions start at points that are spread evenly.
    """
    experts, chosen_k = config.dim_sizes["experts"], jnp.arange(config.experts_per_token)
    position_T1 = positions_T[:, None]
    if config.routing == "one":
        rank_Tk = 0 * position_T1 + chosen_k
    elif config.routing == "balanced":
        rank_Tk = (position_T1 * config.experts_per_token + chosen_k) % experts
    else:
        ends_E = np.cumsum(zipf_shares(experts, config.experts_per_token, zipf_exponent(config.routing)))
        start_T1 = (position_T1.astype(jnp.uint32) * jnp.uint32(GOLDEN)) // jnp.uint32(2**32 // RESOLUTION)
        point_Tk = start_T1.astype(jnp.int32) + RESOLUTION * chosen_k
        rank_Tk = (point_Tk[..., None] >= np.round(ends_E[:-1] * RESOLUTION).astype(np.int32)).sum(-1)
    return jnp.take(np.random.default_rng(0).permutation(experts).astype(np.int32), rank_Tk)


@cache
def zipf_shares(experts: int, chosen: int, exponent: float) -> tuple[float, ...]:
    """The share of tokens that choose each expert, by rank from 1: as rank^-exponent, but at most 1. Their sum is k.

    >>> [round(share, 2) for share in zipf_shares(4, 2, 1.0)]
    [0.96, 0.48, 0.32, 0.24]
    >>> [round(share, 2) for share in zipf_shares(4, 2, 2.0)]
    [1.0, 0.59, 0.26, 0.15]
    """
    weights, certain = np.arange(1, experts + 1) ** -exponent, 0
    while (chosen - certain) * weights[certain] > weights[certain:].sum():
        certain += 1  # all tokens choose it
    rest = (chosen - certain) * weights[certain:] / weights[certain:].sum()
    return *[1.0] * certain, *map(float, rest)


def choices_of(experts_Nk: Int[Array, "N k"], experts: int) -> Float[Array, " E"]:
    """How many choices each expert has."""
    return (experts_Nk[..., None] == jnp.arange(experts)).sum((0, 1)).astype(jnp.float32)


def dropped_choices(experts_Nk: Int[Array, "N k"], experts: int, groups: int, capacity: int) -> Float[Array, ""]:
    """How many choices are beyond the capacity of their expert for their group. Training does not read it."""
    expert_GM = experts_Nk.reshape(groups, -1)
    count_GE = (expert_GM[..., None] == jnp.arange(experts)).sum(1)
    return jnp.maximum(count_GE - capacity, 0).sum().astype(jnp.float32)


def load_term(bias_E: Array, count_E: Array) -> Float[Array, ""]:
    """Zero, with the choices of each expert less their mean as the gradient of the biases (core/optimizer.py)."""
    return (lax.stop_gradient(count_E - count_E.sum() / len(count_E)) * (bias_E - lax.stop_gradient(bias_E))).sum()


class Routed(NamedTuple):
    """Tokens and their choices, of which a device gives those of some experts a row. It may be rows that were sent.

    Attributes:
        x_ND: the tokens.
        weights_Nk: of their choices.
        experts_Nk: the expert of each choice, among those that have rows; `experts` for any other one.
        experts: how many experts have rows.
    """

    x_ND: Float[Array, "N D"]
    weights_Nk: Float[Array, "N k"]
    experts_Nk: Int[Array, "N k"]
    experts: int


class Slots(NamedTuple):
    """Which choice of which token is in which row. A choice is an index into [N,k], flat.

    Attributes:
        choice_R: the choice in each row; N k for an empty row.
        row_Nk: the row of each choice; R for a choice that is dropped, or of an expert without rows.
    """

    choice_R: Int[Array, " R"]
    row_Nk: Int[Array, "N k"]


class Sorted(NamedTuple):
    """The choices of each group of tokens, sorted by expert.

    Attributes:
        expert_GM: the expert of each choice.
        order_GM: the choices, by expert and then by token.
        counts_GE: how many choices each expert has.
        starts_GE: where they begin in `order_GM`.
        rank_GM: the place of a choice among those of its expert, from 0.
    """

    expert_GM: Int[Array, "G M"]
    order_GM: Int[Array, "G M"]
    counts_GE: Int[Array, "G E"]
    starts_GE: Int[Array, "G E"]
    rank_GM: Int[Array, "G M"]


def sort(experts_Nk: Int[Array, "N k"], experts: int, groups: int) -> Sorted:
    """Sort choices by expert."""
    expert_GM = experts_Nk.reshape(groups, -1)
    order_GM = jnp.argsort(expert_GM, axis=1, stable=True)
    counts_GE = (expert_GM[..., None] == jnp.arange(experts)).sum(1)
    starts_GE = jnp.cumsum(counts_GE, axis=1) - counts_GE
    # The place of a choice in the order is the inverse permutation.
    rank_GM = jnp.argsort(order_GM, axis=1) - jnp.take_along_axis(starts_GE, expert_GM, axis=1)
    return Sorted(expert_GM, order_GM, counts_GE, starts_GE, rank_GM)


def slots(experts_Nk: Int[Array, "N k"], experts: int, groups: int, capacity: int) -> Slots:
    """Give the choices of each group rows of their experts' buffers [E,G,C], by token, and drop those beyond C."""
    choices, k = experts_Nk.size, experts_Nk.shape[1]
    expert_GM, order_GM, counts_GE, starts_GE, rank_GM = sort(experts_Nk, experts, groups)
    group_G1, per_group = jnp.arange(groups)[:, None], choices // groups
    taken_GM = (rank_GM < capacity) & (expert_GM < experts)
    row_GM = jnp.where(taken_GM, (expert_GM * groups + group_G1) * capacity + rank_GM, experts * groups * capacity)

    place_GEC = starts_GE[..., None] + jnp.arange(capacity)
    taken_GEC = jnp.take_along_axis(order_GM, jnp.minimum(place_GEC, per_group - 1).reshape(groups, -1), axis=1)
    taken_GEC = (taken_GEC + group_G1 * per_group).reshape(place_GEC.shape)
    choice_GEC = jnp.where(jnp.arange(capacity) < counts_GE[..., None], taken_GEC, choices)
    return Slots(choice_GEC.swapaxes(0, 1).reshape(-1), row_GM.reshape(-1, k))


def packed_slots(device_Nk: Int[Array, "N k"], devices: int) -> tuple[Slots, Int[Array, "n 2"]]:
    """Give choices rows by device and then by token, none empty; and for each device their number and the first."""
    device_GM, order_GM, counts_Gn, starts_Gn, rank_GM = sort(device_Nk, devices, 1)
    row_GM = jnp.take_along_axis(starts_Gn, device_GM, axis=1) + rank_GM
    return Slots(order_GM[0], row_GM.reshape(device_Nk.shape)), jnp.stack([counts_Gn[0], starts_Gn[0]], 1)


def block_slots(experts_Nk: Int[Array, "N k"], experts: int, blocks: int, size: int) -> tuple[Slots, Int[Array, " S"]]:
    """Give every choice of `experts` a row in blocks of `size` rows, each of one expert; and the blocks' experts.

    `blocks` must suffice for any counts (`expert_rows.py`). Those that are left over have empty rows, and `experts` in
    place of an expert.
    """
    choices = experts_Nk.size
    expert_GM, order_GM, counts_GE, starts_GE, rank_GM = sort(experts_Nk, experts, 1)
    ends_E = jnp.cumsum(-(-counts_GE[0] // size))
    first_E = jnp.concatenate([jnp.zeros_like(ends_E[:1]), ends_E[:-1]])
    of_block_S = jnp.searchsorted(ends_E, jnp.arange(blocks), side="right")
    expert_S = jnp.minimum(of_block_S, experts - 1)
    rank_SR = (jnp.arange(blocks) - first_E[expert_S])[:, None] * size + jnp.arange(size)
    place_SR = jnp.minimum(starts_GE[0][expert_S][:, None] + rank_SR, choices - 1)
    choice_SR = jnp.where(rank_SR < counts_GE[0][expert_S][:, None], order_GM[0][place_SR], choices)
    row_GM = jnp.where(expert_GM < experts, first_E[expert_GM] * size + rank_GM, blocks * size)
    return Slots(choice_SR.reshape(-1), row_GM.reshape(experts_Nk.shape)), of_block_S
