"""Small Llamas, and blocks of a user: layers of two kinds in turn, and an MLP that adds to the loss.

This file is all that another block needs. `register` makes it known.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import pytest

from strategies import GPTConfig
from strategies.model.block import BLOCKS, Block, LlamaBlock
from strategies.model.mlp import GatedMLP
from tests.strategies.equality import CONFIG


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


SMALL = dataclasses.replace(CONFIG, block="llama", key_heads=4)
TOY = GPTConfig(layers=6, embed=48, heads=8, key_heads=4, head_size=8, vocab=257, sequence=24, mlp=80, block="llama")


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has to be told of the blocks."""
    for name, block in (("both", Alternating), ("penalised", PenalisedBlock)):
        monkeypatch.setitem(BLOCKS, name, block)
