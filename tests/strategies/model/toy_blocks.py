"""Blocks of a user: layers of two kinds in turn, and an MLP that adds to the loss.

This file is all that another block needs. `register` makes it known.
"""

from typing import ClassVar

import jax.numpy as jnp
import pytest

from strategies.model.block import BLOCKS, Block, LlamaBlock
from strategies.model.parts import GatedMLP


class Alternating(Block):
    """GPT-2's parts, then those of a Llama block."""

    parts: ClassVar = {**Block.parts, **{f"{name}_": part for name, part in LlamaBlock.parts.items()}}


class PenalisedMLP(GatedMLP):
    """A gated MLP that adds to the loss: the squares of what it takes, as a router adds its own."""

    extras = ("squares",)

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the gated MLP to the residual stream."""
        squares = 0.1 * jnp.square(normed_BTD.astype(jnp.float32) - 0.1).sum()
        return super().__call__(x_BTD, normed_BTD, info)[0], {"squares": squares}


class PenalisedBlock(LlamaBlock):
    """A Llama block that adds to the loss."""

    parts: ClassVar = {**LlamaBlock.parts, "mlp": PenalisedMLP}


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has to be told of the blocks."""
    for name, block in (("both", Alternating), ("penalised", PenalisedBlock)):
        monkeypatch.setitem(BLOCKS, name, block)
