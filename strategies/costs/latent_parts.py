"""Costs of multi-head latent attention on a device; like those of parts.py."""

from strategies.core.share import Share
from strategies.costs.parts import AttentionCosts, Matmul
from strategies.model.latent_attention import LATENTS


class LatentAttentionCosts(AttentionCosts):
    """Multi-head latent attention."""

    @staticmethod
    def rows(share: Share, matmul: Matmul) -> tuple[int, int]:
        """Latents are computed of a device's own tokens."""
        return share.residual_tokens if matmul.weight.dims[-1] in LATENTS else share.tokens, 1

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Also gradients of keys and values that are not kept, and of latents."""
        latents = share.residual_tokens * (share.config.dim_sizes["query_latents"] + share.latents)
        latents = 0 if share.reuses_residual_buffers else latents
        expanded = 0 if share.keeps_expanded or share.train.remat == "full" else share.attended_kv_features
        return AttentionCosts.waiting_elements(share) + share.tokens * expanded + latents

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Queries, latents, attention's output, and in float32 the sums of exponentials and the norms' inverses.

        Keys and values are kept only if devices exchange them; otherwise Ulysses keeps the latents that arrived. With
        `remat="none"` also latents before and after their norms, the scales, and what queries are computed from.
        """
        train, sizes = share.train, share.config.dim_sizes
        if train.remat == "full":
            return 0
        outputs, everything = 2 if share.ulysses else 1, train.remat == "none"
        normed, expanded = sizes["query_latents"] + sizes["latents"], share.attended_kv_features
        kept = share.tokens * (share.query_features + outputs * share.head_features)
        kept += share.residual_tokens * (normed if everything else sizes["query_latents"] + share.latents)
        if share.keeps_expanded:  # a ring's keys are put together again from plain and rotary features
            kept += share.tokens * (expanded if share.ulysses or everything else sum(share.expanded_features))
            kept += share.tokens * sizes["latents"] * everything
        elif share.ulysses:
            kept += share.contexts * share.tokens * share.latents
            kept += sizes["latents"] * sum(share.expanded_features) // share.contexts * everything
        else:
            kept += share.tokens * share.latents * everything
        numbers = share.tokens * share.config.heads // share.tensors
        numbers += share.residual_tokens * (2 if share.config.query_rank else 1)
        if everything:
            kept += share.tokens * (share.config.query_rank or share.config.embed)
            numbers += normed
            wide = 4 - share.itemsize if share.tensors > 1 and not share.sequence_parallel else 0
            kept += wide * share.tokens * share.config.embed // share.itemsize  # of the norm before, which is gathered
        return share.itemsize * kept + 4 * numbers
