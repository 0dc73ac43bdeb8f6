"""Number and contents of experts' rows, in buffers or in blocks.

Without dropping, rows are sorted into blocks. Arrays have a fixed shape, so there are enough rows for the most uneven
routing: min(k, e) per token that reaches a device with e experts. A token chooses an expert at most once.

Dims: N tokens, k experts per token, D embed, E experts, G groups, C capacity, R rows.
"""

import math

from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.grouped_matmul import to_rows
from strategies.model.remat import KEPT
from strategies.model.router import RowAssignment


def kept_slots(found: RowAssignment) -> RowAssignment:
    """Name slots as residuals, so that only full recomputation of the block computes them again."""
    return RowAssignment(*(checkpoint_name(array, KEPT) for array in found))


def fill_rows(
    x_ND: Array, weights_Nk: Array, found: RowAssignment, shape: tuple[int, ...]
) -> tuple[RowAssignment, Array, Array]:
    """The assignment, kept, and the contents of their rows: tokens and router weights."""
    found = kept_slots(found)
    x_EGCD = to_rows(x_ND, found, weights_Nk.shape[1]).reshape(shape)
    return found, x_EGCD, to_rows(weights_Nk.reshape(-1, 1), found, 1).reshape(shape)


def buffer_rows(config: GPTConfig, tokens: int) -> int:
    """Rows of all experts' buffers for `tokens` tokens."""
    return config.dim_sizes["experts"] * tokens * config.capacity // config.group_tokens


def received_rows(config: GPTConfig, tokens: int, devices: int) -> int:
    """Rows reserved on a device for tokens from the devices that split the experts, with `tokens` tokens on each."""
    return devices * tokens * min(config.experts_per_token, config.dim_sizes["experts"] // devices)


def sent_rows(config: GPTConfig, tokens: int, devices: int, *, ragged: bool) -> int:
    """Rows that a device sends, also to itself: the routed ones if ragged (mean for combine), else whole sections."""
    return config.experts_per_token * tokens if ragged else received_rows(config, tokens, devices)


def blocks_of(most: int, choices: int, experts: int) -> tuple[int, int]:
    """Number of blocks that suffices for any routing to a device's experts, and the rows of a block.

    `most` rows are needed with the most uneven routing, `choices` with balanced routing. A block has a power of two
    rows, from 8 to 512. Where that range allows it, padding is at most half the choices under balanced routing, because
    each expert fills all its blocks but one.
    """
    size = 2 ** min(9, max(3, (choices // (2 * experts)).bit_length() - 1))
    occupied = min(experts, most)
    return (most - occupied) // size + occupied, size


def filled_blocks(choices: int, experts: int, blocks: int, size: int) -> int:
    """Number of a device's blocks that have rows under balanced routing, where its experts share `choices` equally."""
    return min(blocks, experts * math.ceil(choices / experts / size))
