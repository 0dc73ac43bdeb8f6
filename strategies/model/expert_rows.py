"""Rows of experts: how many a device has, in buffers or in blocks, and what is in them.

Where nothing is dropped rows are sorted into blocks. Arrays have a fixed shape, so there are as many rows as the most
uneven routing needs: min(k, e) for each token, of those that arrive at a device with e experts. A token chooses an
expert once.

Dims: N tokens, k experts per token, D embed, E experts, G groups, C capacity, R rows.
"""

import math

from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.grouped_matmul import to_rows
from strategies.model.pallas import grouped_kernel
from strategies.model.remat import KEPT
from strategies.model.router import Slots
from strategies.model.share import Share


def kept_slots(found: Slots) -> Slots:
    """Slots that the backward pass does not compute again, unless it recomputes the whole block."""
    return Slots(*(checkpoint_name(array, KEPT) for array in found))


def fill_rows(x_ND: Array, weights_Nk: Array, found: Slots, shape: tuple[int, ...]) -> tuple[Slots, Array, Array]:
    """The slots, kept, and what is in their rows: tokens, and the weights of their router."""
    found = kept_slots(found)
    x_EGCD = to_rows(x_ND, found, weights_Nk.shape[1]).reshape(shape)
    return found, x_EGCD, to_rows(weights_Nk.reshape(-1, 1), found, 1).reshape(shape)


def buffer_rows(config: GPTConfig, tokens: int) -> int:
    """Rows of the buffers of all experts for so many tokens."""
    return config.dim_sizes["experts"] * tokens * config.capacity // config.group_tokens


def received_rows(config: GPTConfig, tokens: int, devices: int) -> int:
    """Rows reserved on a device for what the devices that split the experts send it, with so many tokens each."""
    return devices * tokens * min(config.experts_per_token, config.dim_sizes["experts"] // devices)


def sent_rows(config: GPTConfig, tokens: int, devices: int, *, ragged: bool) -> int:
    """Rows that a device sends, those to itself included: the routed ones if ragged, or else whole sections.

    In a ragged combine that is the mean over devices.
    """
    return config.experts_per_token * tokens if ragged else received_rows(config, tokens, devices)


def arrived(share: Share) -> tuple[int, int]:
    """Tokens that arrive at a device for its experts, and choices of each. A row that was sent has one choice."""
    if share.sends_rows:
        return received_rows(share.config, share.tokens, share.experts), 1
    return share.gathered_tokens or share.tokens, share.config.experts_per_token


def blocks_of(most: int, choices: int, experts: int) -> tuple[int, int]:
    """How many blocks suffice for the choices of a device's experts, whatever the routing; and the rows of a block.

    Rows are a power of two from 8 to 512, and where that allows it at most half as many are padding as are choices with
    balanced routing: each expert fills all of its blocks but one.

    Args:
        most: rows that the device needs with the most uneven routing.
        choices: rows that it needs with balanced routing.
        experts: number of experts on the device.
    """
    size = 2 ** min(9, max(3, (choices // (2 * experts)).bit_length() - 1))
    occupied = min(experts, most)
    return (most - occupied) // size + occupied, size


def filled_blocks(choices: int, experts: int, blocks: int, size: int) -> int:
    """How many blocks of a device have rows if routing is balanced: its experts have equal shares of `choices`."""
    return min(blocks, experts * math.ceil(choices / experts / size))


def batch_parts(share: Share) -> int:
    """Parts of a microbatch on which a layer runs by itself (halves.py)."""
    return 2 if share.train.halves == "on" else 1


def blocks_here(share: Share) -> tuple[int, int]:
    """`blocks_of` a device, for a microbatch. Each half of it has blocks of its own (halves.py)."""
    blocks, size = _blocks_at_once(share)
    return batch_parts(share) * blocks, size


def _choices_at_once(share: Share) -> int:
    return share.tokens * share.config.experts_per_token // batch_parts(share)


def _blocks_at_once(share: Share) -> tuple[int, int]:
    tokens, chosen = arrived(share)
    most = tokens // batch_parts(share) * min(chosen, share.held_experts)
    return blocks_of(most, _choices_at_once(share), share.held_experts)


def fit_kernel(share: Share) -> bool:
    """Whether the kernels of grouped matmuls fit the blocks and matrices of a device."""
    return grouped_kernel.fits(blocks_here(share)[1], share.config.embed, share.expert_mlp)


def rows_of(share: Share) -> int:
    """Rows of the experts' buffers or blocks on a device, for a microbatch."""
    return math.prod(blocks_here(share)) if share.grouped_matmuls else buffer_rows(share.config, share.tokens)


def computed_blocks(share: Share) -> int:
    """Blocks that a device multiplies, for a microbatch: with balanced routing, if it skips those that are empty."""
    if share.grouped_matmuls == "loop":
        return blocks_here(share)[0]
    return batch_parts(share) * filled_blocks(_choices_at_once(share), share.held_experts, *_blocks_at_once(share))


def loops_over_blocks(share: Share) -> bool:
    """Whether loops multiply the blocks of a device, one after the other."""
    return share.grouped_matmuls in ("loop", "skipping_loop")


def index_elements(share: Share) -> int:
    """Indices on a device, for a microbatch: the choice in each row, the row of each choice, and experts of blocks.

    A device that sends rows has such slots of these, too, and for ragged exchanges how many go to and come from
    each device, and where they begin.
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
    """Elements that a device receives in the dispatch of a microbatch: rows or tokens, and two numbers of each choice.

    These are the router's weight, and the number of the expert, which rows of buffers do not have.
    """
    if share.experts == 1:
        return 0
    if not share.sends_rows and not share.gathered_tokens:
        return rows_of(share) * (share.config.embed + 1)
    tokens, chosen = arrived(share)
    return tokens * (share.config.embed + 2 * chosen)
