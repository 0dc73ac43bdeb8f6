"""Costs of a mixture of experts on a device (model/experts.py, model/clamped_experts.py)."""

from strategies.core.expert_rows import (
    arrived,
    blocks_here,
    computed_blocks,
    index_elements,
    loops_over_blocks,
    received_elements,
    rows_of,
)
from strategies.core.share import Share
from strategies.costs.parts import Matmul, PartCosts
from strategies.gpt_config import GPTConfig
from strategies.model.parts import Part
from strategies.model.router import KINDS
from strategies.model.weights import matrix


class ExpertsCosts(PartCosts):
    """Router, experts and shared expert."""

    @staticmethod
    def matmuls(part: type[Part], config: GPTConfig) -> tuple[Matmul, ...]:
        """The router, the gates and ups of k experts and the shared one, and last all their downs."""
        weights, chosen = part.weights(config), config.experts_per_token
        into, out = (Matmul(matrix(*dims), chosen) for dims in (("embed", "expert_mlp"), ("expert_mlp", "embed")))
        shared = [Matmul(weights[name]) for name in weights if name.startswith("shared")]
        return Matmul(weights["router_DE"]), into, into, *shared[:2], out, *shared[2:]

    @staticmethod
    def last_matmuls(config: GPTConfig) -> int:
        """The downs of the experts and of the shared expert."""
        return 1 + bool(config.shared_mlp)

    @staticmethod
    def rows(share: Share, matmul: Matmul) -> tuple[int, int]:
        """The device's blocks, or its experts with the rows of their buffers."""
        if "expert_mlp" not in matmul.weight.dims:
            return share.tokens, 1
        if share.grouped_matmuls:
            return blocks_here(share)[1], computed_blocks(share)
        return rows_of(share) // share.held_experts, share.held_experts

    @staticmethod
    def activated_elements(share: Share) -> int:
        """Hidden features of all rows and of the shared expert."""
        return rows_of(share) * share.expert_mlp + share.tokens * share.shared_mlp

    @staticmethod
    def padding_flops(share: Share) -> tuple[int, int]:
        """FLOPs of the rows beyond k per token; negative if the capacity has fewer."""
        computed = blocks_here(share)[1] * computed_blocks(share) if share.grouped_matmuls else rows_of(share)
        rows = computed - share.config.experts_per_token * share.tokens
        sizes = share.config.dim_sizes
        down = 2 * rows * sizes["embed"] * sizes["expert_mlp"]
        return 3 * down, 2 * down

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Router logits, slots, gate and up; with an expert axis also what arrived from other devices.

        With a load-balancing loss also the choices of each expert, by all tokens or by each sequence's, which were
        summed over devices. With `remat="none"` all rows are kept, seven arrays around SiLU, six of the shared expert,
        and the loads of biased experts.
        """
        config, tokens, size = share.config, share.tokens, share.itemsize
        experts, embed = config.dim_sizes["experts"], config.embed
        counts = 4 * experts if config.balance_loss or share.train.remat == "none" else 0
        if config.balance_over == "sequence":
            counts *= share.tokens * share.contexts // config.sequence
        if share.train.remat == "full":
            return counts
        rows, shared = rows_of(share), tokens * share.shared_mlp
        kept = counts + 4 * index_elements(share)
        if share.train.remat == "dots":
            return kept + size * (tokens * experts + 2 * (rows * share.expert_mlp + shared) + received_elements(share))
        hidden = 7 * rows * share.expert_mlp + 6 * shared
        kept += 0 if config.router_bias_rate is None else 4 * experts
        return kept + router_kept_bytes(config, tokens) + size * (rows * (embed + 1) + hidden)

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Gradients of the experts' outputs, token rows unless an expert axis keeps them, and hidden features.

        Loops over blocks also hold operands of their matmuls; fitted to compiled programs.
        """
        rows, hidden, remat = rows_of(share), ExpertsCosts.activated_elements(share), share.train.remat
        quarters = {"none": 10, "dots": 6, "full": 1}[remat]
        looped = (2 * rows * share.config.embed + quarters * hidden) // 4 if loops_over_blocks(share) else 0
        if share.reuses_residual_buffers:
            return looped
        copies = 1 if share.experts > 1 and remat != "full" else 2
        return looped + copies * rows * share.config.embed + (3 if remat == "full" else 2) * hidden

    @staticmethod
    def working_elements(share: Share) -> int:
        """Token rows and their gradients, arrays around SiLU, the router's; if recomputed, also what arrived."""
        config = share.config
        rows, hidden = rows_of(share) * config.embed, ExpertsCosts.activated_elements(share)
        of_rows = share.sends_rows or share.gathered_tokens
        received = (arrived(share)[0] * config.embed if of_rows else rows) if share.experts > 1 else 0
        routes = 3 * share.tokens * config.dim_sizes["experts"]
        if share.train.remat == "full":
            return 4 * rows + 5 * hidden + share.tokens * config.embed + routes + received
        return (5 * rows + 6 * hidden + 3 * share.tokens * config.embed) // 2 + routes + received


class ClampedExpertsCosts(ExpertsCosts):
    """Experts of gpt-oss."""

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Like `ExpertsCosts`, but with `remat="none"` four arrays around the activation instead of seven."""
        fewer = 3 if share.train.remat == "none" else 0
        return ExpertsCosts.kept_bytes(share) - fewer * share.itemsize * rows_of(share) * share.expert_mlp


def router_kept_bytes(config: GPTConfig, tokens: int) -> int:
    """Bytes that autodiff keeps for `router.choose` and the router's losses with `remat="none"`."""
    kind, experts, chosen = KINDS[config.router], config.dim_sizes["experts"], config.experts_per_token
    elements = 2 * experts + 2 + chosen
    if kind.renormalised:
        elements += chosen + 2
    if kind.sigmoid:
        elements += experts + 2
    return tokens * (4 * elements + 1)
