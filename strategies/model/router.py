"""Routers: each token's experts, their weights, and the experts' rows that the token takes.

Dims: N tokens, E experts, k experts per token, G groups of tokens, M = k N / G choices of a group, C capacity, S
blocks, R rows of all buffers or blocks, or of one block, n devices.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from strategies.gpt_config import GPTConfig, Router
from strategies.gpt_requirements import zipf_exponent

TINY = 1e-20
"""Avoids division by zero if all sigmoids underflow in float32, as in DeepSeek-V3."""


class RouterKind(NamedTuple):
    """How a router scores experts, by sigmoids or a softmax over all, and whether it divides weights by their sum."""

    sigmoid: bool = False
    renormalised: bool = False


KINDS: Mapping[Router, RouterKind] = {
    "softmax": RouterKind(),
    "renormalised": RouterKind(renormalised=True),
    "sigmoid": RouterKind(sigmoid=True, renormalised=True),
}
"""By `GPTConfig.router`. softmax: OLMoE (Muennighoff et al. 2024). renormalised: Mixtral (Jiang et al. 2024) and Qwen3;
it equals a softmax over the chosen experts' logits. sigmoid: DeepSeek-V3 (2024), section 2.1.2."""


class Routes(NamedTuple):
    """A router's decisions.

    Attributes:
        weights_Nk: weights of each token's experts, float32.
        experts_Nk: their indices, by decreasing score (plus bias) unless routing is forced.
        probs_NE: scores of all experts, normalised to sum one per token.
        log_z_N: log-sum-exp of the logits.
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
    """Choose each token's experts by score plus bias, or take those forced on its position, in float32."""
    kind, logits_NE = KINDS[config.router], logits_NE.astype(jnp.float32)
    log_z_N = jax.nn.logsumexp(logits_NE, axis=-1)
    scores_NE = jax.nn.sigmoid(logits_NE) if kind.sigmoid else jnp.exp(logits_NE - log_z_N[:, None])
    if forced_Tk is None and bias_E is None and config.router_groups == 1:
        weights_Nk, experts_Nk = lax.top_k(scores_NE, config.experts_per_token)
    else:
        biased_NE = lax.stop_gradient(scores_NE if bias_E is None else scores_NE + bias_E)
        if forced_Tk is None:
            experts_Nk = _chosen(biased_NE, config)
        else:
            # Forced choices depend on scores and biases, as learned ones do; otherwise XLA hoists their cost out of the
            # loop, and gathers no biases.
            forced_Tk = forced_Tk + (0 * biased_NE[0, 0]).astype(jnp.int32)
            experts_Nk = jnp.tile(forced_Tk, (len(scores_NE) // len(forced_Tk), 1))
        weights_Nk = jnp.take_along_axis(scores_NE, experts_Nk, axis=1)
    if kind.renormalised:
        weights_Nk = config.routed_scale * weights_Nk / (weights_Nk.sum(-1, keepdims=True) + TINY)
    probs_NE = scores_NE / (scores_NE.sum(-1, keepdims=True) + TINY) if kind.sigmoid else scores_NE
    return Routes(weights_Nk, experts_Nk, probs_NE, log_z_N)


def _chosen(scores_NE: Float[Array, "N E"], config: GPTConfig) -> Int[Array, "N k"]:
    """The best experts among a token's best groups. A group's score is the sum of its two highest expert scores."""
    groups = config.router_groups
    if groups > 1:
        scores_NGe = scores_NE.reshape(len(scores_NE), groups, -1)
        group_NG = lax.top_k(scores_NGe, min(2, scores_NGe.shape[-1]))[0].sum(-1)
        best_Ng = lax.top_k(group_NG, config.groups_per_token)[1]
        among_NG = (best_Ng[..., None] == jnp.arange(groups)).any(1)
        scores_NE = jnp.where(among_NG[..., None], scores_NGe, -jnp.inf).reshape(scores_NE.shape)
    return lax.top_k(scores_NE, config.experts_per_token)[1]


RESOLUTION = 2**20
"""Shares of experts in forced routing are multiples of 1 / RESOLUTION: integers, so that all programs agree."""
GOLDEN = 2_654_435_769
"""2^32 over the golden ratio. Its multiples modulo 2^32 are spread evenly (Knuth, "The Art of Computer Programming",
section 6.4)."""


def forced(config: GPTConfig, positions_T: Int[Array, " T"]) -> Int[Array, "T k"]:
    """The distinct experts of each position of a sequence, if routing is not learned.

    They depend only on the position. So all layers, sequences, strategies and meshes route equally, and the router
    learns from its scores of these experts. The order of the experts (their ranks) is drawn with a fixed seed.

    "one" takes the k experts of the lowest ranks. "balanced" takes experts round robin. In "zipf=X" an expert has its
    share in `zipf_shares`; each position takes k points at distance one on the line of these shares (systematic
    sampling, Madow 1949), and the starts of consecutive positions are spread evenly.
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
    """The share of tokens that choose each expert, by rank from 1: proportional to rank^-exponent, at most 1, sum k.

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
    """Number of choices of each expert."""
    return (experts_Nk[..., None] == jnp.arange(experts)).sum((0, 1)).astype(jnp.float32)


def dropped_choices(experts_Nk: Int[Array, "N k"], experts: int, groups: int, capacity: int) -> Float[Array, ""]:
    """Number of choices beyond their expert's capacity in their group. A metric only."""
    expert_GM = experts_Nk.reshape(groups, -1)
    count_GE = (expert_GM[..., None] == jnp.arange(experts)).sum(1)
    return jnp.maximum(count_GE - capacity, 0).sum().astype(jnp.float32)


def load_term(bias_E: Array, count_E: Array) -> Float[Array, ""]:
    """Zero, whose gradient by the biases is each expert's choices minus their mean (core/optimizer.py)."""
    return (lax.stop_gradient(count_E - count_E.sum() / len(count_E)) * (bias_E - lax.stop_gradient(bias_E))).sum()


class Routed(NamedTuple):
    """Tokens and their choices. This device assigns rows to those of some experts. Tokens may come from other devices.

    Attributes:
        weights_Nk: weights of their choices.
        experts_Nk: the expert of each choice if it has rows here, otherwise `experts`.
        experts: number of experts that have rows here.
    """

    x_ND: Float[Array, "N D"]
    weights_Nk: Float[Array, "N k"]
    experts_Nk: Int[Array, "N k"]
    experts: int


class RowAssignment(NamedTuple):
    """The row of each choice and the choice in each row. A choice is a flat index into [N,k].

    Attributes:
        choice_R: the choice in each row; N k for an empty row.
        row_Nk: the row of each choice; R if the choice is dropped or its expert has no rows here.
    """

    choice_R: Int[Array, " R"]
    row_Nk: Int[Array, "N k"]


class Sorted(NamedTuple):
    """The choices of each group of tokens, sorted by expert.

    Attributes:
        order_GM: the choices, by expert and then by token.
        starts_GE: index of an expert's first choice in `order_GM`.
        rank_GM: index of a choice among its expert's choices.
    """

    expert_GM: Int[Array, "G M"]
    order_GM: Int[Array, "G M"]
    counts_GE: Int[Array, "G E"]
    starts_GE: Int[Array, "G E"]
    rank_GM: Int[Array, "G M"]


def sort(experts_Nk: Int[Array, "N k"], experts: int, groups: int) -> Sorted:
    """Sort each group's choices by expert."""
    expert_GM = experts_Nk.reshape(groups, -1)
    order_GM = jnp.argsort(expert_GM, axis=1, stable=True)
    counts_GE = (expert_GM[..., None] == jnp.arange(experts)).sum(1)
    starts_GE = jnp.cumsum(counts_GE, axis=1) - counts_GE
    # The inverse permutation has the index of a choice in the order.
    rank_GM = jnp.argsort(order_GM, axis=1) - jnp.take_along_axis(starts_GE, expert_GM, axis=1)
    return Sorted(expert_GM, order_GM, counts_GE, starts_GE, rank_GM)


def slots(experts_Nk: Int[Array, "N k"], experts: int, groups: int, capacity: int) -> RowAssignment:
    """Assign each group's choices to rows of their experts' buffers [E,G,C], by token; drop choices beyond C."""
    choices, k = experts_Nk.size, experts_Nk.shape[1]
    expert_GM, order_GM, counts_GE, starts_GE, rank_GM = sort(experts_Nk, experts, groups)
    group_G1, per_group = jnp.arange(groups)[:, None], choices // groups
    taken_GM = (rank_GM < capacity) & (expert_GM < experts)
    row_GM = jnp.where(taken_GM, (expert_GM * groups + group_G1) * capacity + rank_GM, experts * groups * capacity)

    place_GEC = starts_GE[..., None] + jnp.arange(capacity)
    taken_GEC = jnp.take_along_axis(order_GM, jnp.minimum(place_GEC, per_group - 1).reshape(groups, -1), axis=1)
    taken_GEC = (taken_GEC + group_G1 * per_group).reshape(place_GEC.shape)
    choice_GEC = jnp.where(jnp.arange(capacity) < counts_GE[..., None], taken_GEC, choices)
    return RowAssignment(choice_GEC.swapaxes(0, 1).reshape(-1), row_GM.reshape(-1, k))


def packed_slots(device_Nk: Int[Array, "N k"], devices: int) -> tuple[RowAssignment, Int[Array, "n 2"]]:
    """Assign choices to rows by device and then by token, without empty rows; and [row count, first row] by device."""
    device_GM, order_GM, counts_Gn, starts_Gn, rank_GM = sort(device_Nk, devices, 1)
    row_GM = jnp.take_along_axis(starts_Gn, device_GM, axis=1) + rank_GM
    return RowAssignment(order_GM[0], row_GM.reshape(device_Nk.shape)), jnp.stack([counts_Gn[0], starts_Gn[0]], 1)


def block_slots(
    experts_Nk: Int[Array, "N k"], experts: int, blocks: int, size: int
) -> tuple[RowAssignment, Int[Array, " S"]]:
    """Assign every choice of `experts` to a row in blocks of `size` rows of one expert; and the blocks' experts.

    `blocks` must suffice for any routing (expert_rows.py). Unused blocks have empty rows, and `experts` as their
    expert.
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
    return RowAssignment(choice_SR.reshape(-1), row_GM.reshape(experts_Nk.shape)), of_block_S
