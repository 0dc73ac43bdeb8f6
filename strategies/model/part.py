"""What every part of the model states beside its code, for the formulas in costs/.

A part states its weights (`Part.weights`), and by the other functions of `Part` what one layer does with one
microbatch. costs/ adds up the parts: another MLP, say, is another file and nothing else.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.hooks import Hooks
from strategies.model.passes import Extras, Sums
from strategies.model.remat import KEPT
from strategies.model.share import Share
from strategies.model.weights import WeightSpec, create


class Matmul(NamedTuple):
    """A matmul of a token with a weight, whose first dim is contracted.

    Attributes:
        weight: of one matmul, without a dim over which several are stacked.
        times: how many such matmuls a token has.
    """

    weight: WeightSpec
    times: int = 1

    def flops(self, config: GPTConfig) -> int:
        """Forward FLOPs for one token."""
        return 2 * self.times * math.prod(config.dim_sizes[dim] for dim in self.weight.dims)


class Part(nnx.Module):
    """A part of a transformer block. By default it has no weights, and keeps nothing.

    Attributes:
        attends: whether it calls the attention of the hooks, once.
        dense: whether it attends to all tokens before a token, whatever the window or the stride of the model.
        extras: the names of what it adds to the loss (`passes.Extras`).
        means: how many numbers of a token it averages over devices by `Hooks.mean`, forward, and as many backward.
    """

    attends: ClassVar[bool] = False
    dense: ClassVar[bool] = False
    extras: ClassVar[tuple[str, ...]] = ()
    means: ClassVar[int] = 0

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        """Initialise the weights."""
        self.config = config
        for name, param in create(self.weights(config), config, rngs).items():
            setattr(self, name, param)

    def extras_of(self, sums: Sums, hooks: Hooks) -> Extras:
        """What it adds to the loss (`extras`), from the sums that it returned for the tokens of this device."""
        return sums

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Its weights by name, in the order in which they are drawn. Each becomes an attribute."""
        return {}

    @classmethod
    def share_of(cls, share: Share) -> Share:
        """What a device computes of this part of a layer: with the reach of its attention."""
        return replace(share, dense=True) if cls.dense else share

    @classmethod
    @cache
    def matmuls(cls, config: GPTConfig) -> tuple[Matmul, ...]:
        """The matmuls of a token with weights, in order.

        Devices that split the first dim of the last have partial sums; `Hooks.sum` completes them.
        """
        return tuple(Matmul(weight) for weight in cls.weights(config).values() if weight.is_matrix)

    @staticmethod
    def last_matmuls(config: GPTConfig) -> int:
        """How many of `matmuls`, at the end, have outputs that are only added up."""
        return 1

    @staticmethod
    def rows(share: Share, matmul: Matmul) -> tuple[int, int]:
        """Rows of a matmul on a device, for a microbatch, and how many such matmuls are side by side."""
        return share.tokens, 1

    @staticmethod
    def activated_elements(share: Share) -> int:
        """Elements of the inputs of its activation function, of each input if there are two."""
        return 0

    @staticmethod
    def padding_flops(share: Share) -> tuple[int, int]:
        """Forward FLOPs for the tokens of a microbatch on a device beyond those of `matmuls`, and of recomputation.

        Devices that split the hidden features count together.
        """
        return 0, 0

    @staticmethod
    def kept_bytes(share: Share) -> int:
        """Bytes kept from the forward to the backward pass, by `remat`."""
        return 0

    @staticmethod
    def waiting_elements(share: Share) -> int:
        """Elements that zb-h1 holds besides residuals, between the two halves of the backward pass.

        They are inputs and gradients of outputs of matmuls, except those that reuse memory of residuals which the
        first half has consumed.
        """
        return 0


def add_branch(x_BTD: Array, branch_BTD: Array, bias_D: Any = None) -> Array:
    """Add a branch and its bias, if it has one, to the residual stream.

    The branch is kept for the backward pass. It was summed over devices: to compute it again would communicate again.
    """
    y_BTD = x_BTD + checkpoint_name(branch_BTD, KEPT)
    return y_BTD if bias_D is None else add_bias(y_BTD, bias_D)


def add_bias(x: Array, bias: Any) -> Array:
    """Add a bias in float32. The result has the dtype of the array."""
    return (x + bias).astype(x.dtype)
