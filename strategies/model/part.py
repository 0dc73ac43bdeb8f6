"""What every part of the model states beside its code, for the formulas in costs/.

A part states its weights (`Part.weights`), and by the other functions of `Part` what one layer does with one
microbatch. costs/ adds up the parts: another MLP, say, is another file and nothing else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.model.attention import Reach
from strategies.model.attention.splash import computed_keys
from strategies.model.grouped_matmul import GroupedMatmuls
from strategies.model.hooks import Hooks
from strategies.model.layer_passes import Extras, Sums
from strategies.model.remat import KEPT
from strategies.model.weights import WeightSpec, create


@dataclass(frozen=True)
class Share:
    """What one device computes of a layer, for one microbatch.

    Attributes:
        tokens: that attention and the MLP work on.
        tensors: devices that split the heads and the hidden features of the MLP.
        contexts: devices that split the tokens of a sequence.
        ulysses: attention takes all tokens of some heads, which come from other devices.
        kernel: the kind of attention kernel, as `causal_attention` takes it.
        experts: devices that split the experts.
        grouped_matmuls: how blocks of rows of experts are multiplied; None if the rows are in buffers (experts.py).
        sends_ragged: devices that split the experts send only the routed rows, not whole sections.
        dense: attention takes all tokens before a token, whatever the window or the stride of the model.
    """

    config: GPTConfig
    train: TrainConfig
    tokens: int
    tensors: int = 1
    contexts: int = 1
    ulysses: bool = False
    kernel: str = "xla"
    experts: int = 1
    grouped_matmuls: GroupedMatmuls | None = None
    sends_ragged: bool = False
    dense: bool = False

    def of(self, part: "type[Part]") -> "Share":
        """What the device computes of a part: with the reach of its attention."""
        return replace(self, dense=True) if part.dense else self

    @property
    def reach(self) -> Reach | None:
        """The tokens to which a token attends; None for all before it."""
        return None if self.dense else Reach.of(self.config)

    @property
    def held_experts(self) -> int:
        """Experts on this device."""
        return self.config.dim_sizes["experts"] // self.experts

    @property
    def sequence_parallel(self) -> bool:
        """Whether the devices that split heads also split the residual stream over its tokens."""
        return self.train.sequence_parallel and self.tensors > 1

    @property
    def residual_tokens(self) -> int:
        """Tokens whose residual stream this device holds."""
        return self.tokens // self.tensors if self.sequence_parallel else self.tokens

    @property
    def reuses_residual_buffers(self) -> bool:
        """Whether what waits for gradients of weights reuses memory of residuals (slot_reuse.py): unless gathered."""
        return self.train.remat == "none" and not self.sequence_parallel

    @property
    def gathered_tokens(self) -> int:
        """Tokens of all devices that split the experts, where all have them all (`dispatch="all_gather"`); else 0."""
        return self.tokens * self.experts if self.experts > 1 and self.train.dispatch == "all_gather" else 0

    @property
    def sends_rows(self) -> bool:
        """Whether devices that split the experts send each other rows, which are sorted into blocks on arrival."""
        return self.experts > 1 and self.train.dispatch == "all_to_all" and self.grouped_matmuls is not None

    @property
    def skipping(self) -> Reach | None:
        """The reach of attention whose blocks are skipped; None if it is computed like dense attention."""
        reach = None if self.splash else self.reach
        return reach if reach and (self.ring > 1 or reach.skips(self.config.sequence)) else None

    @property
    def splash(self) -> bool:
        """Whether attention is splash.py's. It has no scores in memory."""
        return self.kernel == "splash"

    @property
    def ring(self) -> int:
        """Devices that attend to tokens of each other around a ring; 1 without a ring."""
        return 1 if self.ulysses else self.contexts

    @property
    def zigzag(self) -> bool:
        """Whether a device of the ring has an early and a late chunk of each sequence: some layers have no window."""
        return self.ring > 1 and (self.config.full_attention_every is not None or Reach.of(self.config) is None)

    @property
    def loops_ring(self) -> bool:
        """Whether a ring without a window has a loop as compiled: of n-2 hops, and a loop of one hop is inlined."""
        return self.ring > 3

    @property
    def pieces(self) -> int:
        """Into how many ranges of consecutive tokens the devices of a ring split a sequence."""
        return 2 * self.ring if self.zigzag else self.ring

    @property
    def chunk(self) -> int:
        """Tokens of each of the two chunks of a sequence that a device of a ring has."""
        return self.config.sequence // (2 * self.ring)

    @property
    def computed_keys(self) -> int:
        """Keys that are computed for each query. Dense attention of XLA has scores for all.

        In a ring of n splash attention computes 2n - 1 pairs of chunks and two causal ones, for two chunks of queries.
        """
        tokens = self.config.sequence
        if self.splash and self.ring > 1:
            return (2 * self.ring - 1) * self.chunk // 2 + computed_keys(self.chunk, None)
        if self.splash:
            return computed_keys(tokens, self.reach)
        return self.skipping.computed_keys(tokens, self.pieces) if self.skipping else tokens

    @property
    def earlier_tokens(self) -> int:
        """Tokens of other devices whose keys and values a ring with a window brings."""
        if self.ring == 1 or self.skipping is None:
            return 0
        pieces = self.tokens * self.pieces // self.config.sequence  # on this device
        return pieces * self.skipping.earlier(self.config.sequence, self.pieces)

    @property
    def head_features(self) -> int:
        """Features of the heads on this device."""
        return self.config.head_features // self.tensors

    @property
    def key_features(self) -> int:
        """Features of the heads of keys on this device."""
        return self.config.key_features // self.tensors

    @property
    def attended_key_features(self) -> int:
        """Features of the heads of keys that attention takes, with copies for Ulysses (`QKV.for_devices`)."""
        if not self.ulysses:
            return self.key_features
        head_dim = self.config.head_dim
        return math.lcm(self.key_features // head_dim, self.contexts) * head_dim

    @property
    def attended_features(self) -> int:
        """Features of queries, keys, values and the output of attention together."""
        return 2 * (self.head_features + self.attended_key_features)

    @property
    def mlp(self) -> int:
        """Hidden features of the MLP on this device."""
        return self.config.mlp_dim // self.tensors

    @property
    def expert_mlp(self) -> int:
        """Hidden features of an expert on this device."""
        return self.config.dim_sizes["expert_mlp"] // self.tensors

    @property
    def shared_mlp(self) -> int:
        """Hidden features of the shared expert on this device."""
        return self.config.dim_sizes["shared_mlp"] // self.tensors

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the compute dtype."""
        return jnp.dtype(self.train.dtype).itemsize


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
        extras: the names of what it adds to the loss (`layer_passes.Extras`).
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

        They are inputs and gradients of outputs of matmuls, except those that reuse memory of consumed residuals.
        """
        return 0


def add_branch(x_BTD: Array, branch_BTD: Array, bias_D: Any = None) -> Array:
    """Add a branch and its bias to the residual stream. It is kept: to sum it over devices again would communicate."""
    y_BTD = x_BTD + checkpoint_name(branch_BTD, KEPT)
    return y_BTD if bias_D is None else add_bias(y_BTD, bias_D)


def add_bias(x: Array, bias: Any) -> Array:
    """Add a bias in float32. The result has the dtype of the array."""
    return (x + bias).astype(x.dtype)
