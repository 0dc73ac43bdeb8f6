"""A part of a block of the model: its weights and its function. costs/parts.py has its costs."""

from collections.abc import Mapping
from typing import Any, ClassVar

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.gpt_config import GPTConfig
from strategies.model.hooks import Hooks
from strategies.model.layers import Extras, Sums
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, create


class Part(nnx.Module):
    """A part of a transformer block. By default it has no weights.

    A branch is called with the residual stream x[B,T,D] of this device's own tokens, the normalised features of all
    tokens of its sequences, and the `LayerInfo`. It returns x plus its output, and its sums.

    Attributes:
        attends: whether it calls `Hooks.attend`, once.
        dense: whether it attends to all earlier tokens, whatever the model's window or stride.
        extras: names of the terms that it adds to the loss (`passes.Extras`).
        means: how many numbers per token it averages over devices by `Hooks.mean`, in the forward and again in the
            backward pass.
    """

    attends: ClassVar[bool] = False
    dense: ClassVar[bool] = False
    extras: ClassVar[tuple[str, ...]] = ()
    means: ClassVar[int] = 0

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        self.config = config
        for name, param in create(self.weights(config), config, rngs).items():
            setattr(self, name, param)

    def extras_of(self, sums: Sums, hooks: Hooks) -> Extras:
        """Terms that it adds to the loss (`extras`), from the sums that it returned for this device's tokens."""
        return sums

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Its weights by name, in the order of initialisation. Each becomes an attribute."""
        return {}


def add_branch(x_BTD: Array, branch_BTD: Array, bias_D: Any = None) -> Array:
    """Add a branch, kept as a residual because recomputing it would communicate again, and its bias, if any."""
    y_BTD = x_BTD + checkpoint_name(branch_BTD, KEPT)
    return y_BTD if bias_D is None else add_bias(y_BTD, bias_D)


def add_bias(x: Array, bias: Any) -> Array:
    """Add a bias in float32. The result has the dtype of the array."""
    return (x + bias).astype(x.dtype)
