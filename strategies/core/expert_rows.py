"""Experts' rows on a device, per microbatch: how many it has, receives, multiplies and indexes."""

import math

from strategies.core.share import Share
from strategies.model.expert_rows import blocks_of, buffer_rows, filled_blocks, received_rows, sent_rows
from strategies.model.pallas import grouped_kernel


def arrived(share: Share) -> tuple[int, int]:
    """Tokens that arrive at a device for its experts, and choices per token. A row that was sent has one choice."""
    if share.sends_rows:
        return received_rows(share.config, share.tokens, share.experts), 1
    return share.gathered_tokens or share.tokens, share.config.experts_per_token


def batch_parts(share: Share) -> int:
    """Parts of a microbatch on which a layer runs separately (halves.py)."""
    return 2 if share.train.halves == "on" else 1


def blocks_here(share: Share) -> tuple[int, int]:
    """`blocks_of` for this device and a microbatch, whose halves have their own blocks (halves.py)."""
    blocks, size = _blocks_at_once(share)
    return batch_parts(share) * blocks, size


def _choices_at_once(share: Share) -> int:
    return share.tokens * share.config.experts_per_token // batch_parts(share)


def _blocks_at_once(share: Share) -> tuple[int, int]:
    tokens, chosen = arrived(share)
    most = tokens // batch_parts(share) * min(chosen, share.held_experts)
    return blocks_of(most, _choices_at_once(share), share.held_experts)


def fit_kernel(share: Share) -> bool:
    """Whether grouped matmul kernels fit this device's blocks and matrices."""
    return grouped_kernel.fits(blocks_here(share)[1], share.config.embed, share.expert_mlp)


def rows_of(share: Share) -> int:
    """Rows in this device's buffers or blocks."""
    return math.prod(blocks_here(share)) if share.grouped_matmuls else buffer_rows(share.config, share.tokens)


def computed_blocks(share: Share) -> int:
    """Blocks that this device multiplies: all, or under balanced routing the non-empty ones if it skips empty ones."""
    if share.grouped_matmuls == "loop":
        return blocks_here(share)[0]
    return batch_parts(share) * filled_blocks(_choices_at_once(share), share.held_experts, *_blocks_at_once(share))


def loops_over_blocks(share: Share) -> bool:
    """Whether this device multiplies its blocks in a loop."""
    return share.grouped_matmuls in ("loop", "skipping_loop")


def index_elements(share: Share) -> int:
    """Indices on this device: the choice in each row, the row of each choice, and experts of blocks.

    A device that sends rows also has these for the rows sent, and for ragged exchanges the counts and offsets to and
    from each device.
    """
    tokens, chosen = arrived(share)
    elements = rows_of(share) + tokens * chosen
    if share.grouped_matmuls:
        elements += blocks_here(share)[0]
    if share.sends_rows:
        elements += sent_rows(share.config, share.tokens, share.experts, ragged=share.sends_ragged)
        elements += share.tokens * share.config.experts_per_token
        elements += batch_parts(share) * 4 * share.experts if share.sends_ragged else 0
    return elements


def received_elements(share: Share) -> int:
    """Elements that this device receives in a microbatch's dispatch: rows or tokens, and two numbers per choice.

    The two are the router's weight and the expert's index; rows of buffers have no index.
    """
    if share.experts == 1:
        return 0
    if not share.sends_rows and not share.gathered_tokens:
        return rows_of(share) * (share.config.embed + 1)
    tokens, chosen = arrived(share)
    return tokens * (share.config.embed + 2 * chosen)
