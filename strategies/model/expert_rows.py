"""Rows of experts: how many there are, in buffers or in blocks, and what is in them.

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
from strategies.model.remat import KEPT
from strategies.model.router import Slots


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
