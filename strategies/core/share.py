"""Share: what one device computes of a layer. FLOPs, memory and rows of matmuls are functions of it (costs/)."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.model.attention import Reach
from strategies.model.attention.splash import computed_keys
from strategies.model.block import block_of
from strategies.model.grouped_matmul import GroupedMatmuls
from strategies.model.parts import Part


@dataclass(frozen=True)
class Share:
    """What one device computes of a layer, for one microbatch.

    Attributes:
        tokens: that attention and the MLP work on.
        tensors: devices that split the heads and the MLP's hidden features.
        contexts: devices that split the tokens of a sequence.
        ulysses: attention takes all tokens of some heads, which come from other devices.
        kernel: the attention kernel, as `causal_attention` takes it.
        experts: devices that split the experts.
        grouped_matmuls: how blocks of experts' rows are multiplied; None if rows are in buffers (experts.py).
        sends_ragged: devices that split the experts send only the routed rows, not whole sections.
        dense: attention takes all earlier tokens, whatever the model's window or stride.
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

    @property
    def reach(self) -> Reach | None:
        """The tokens to which a token attends; None for all earlier ones."""
        return None if self.dense else Reach.of(self.config)

    @property
    def held_experts(self) -> int:
        """Experts on this device."""
        return self.config.dim_sizes["experts"] // self.experts

    @property
    def sequence_parallel(self) -> bool:
        """Whether the tensor-parallel devices also split the residual stream by token."""
        return self.train.sequence_parallel and self.tensors > 1

    @property
    def residual_tokens(self) -> int:
        """Tokens whose residual stream this device holds."""
        return self.tokens // self.tensors if self.sequence_parallel else self.tokens

    @property
    def reuses_residual_buffers(self) -> bool:
        """Whether everything that waits for gradients of weights reuses memory of residuals (`split_backward.reuse`).

        With `remat="none"` it does, unless sequence parallelism gathers it; it is then larger than the residuals.
        """
        return self.train.remat == "none" and not self.sequence_parallel

    @property
    def gathered_tokens(self) -> int:
        """Tokens of all devices that split the experts with `dispatch="all_gather"`; else 0."""
        return self.tokens * self.experts if self.experts > 1 and self.train.dispatch == "all_gather" else 0

    @property
    def sends_rows(self) -> bool:
        """Whether devices that split the experts exchange rows, which are sorted into blocks on arrival."""
        return self.experts > 1 and self.train.dispatch == "all_to_all" and self.grouped_matmuls is not None

    @property
    def skipping(self) -> Reach | None:
        """The reach of attention that skips blocks; None if it is computed like dense attention."""
        reach = None if self.splash else self.reach
        return reach if reach and (self.ring > 1 or reach.skips(self.config.sequence)) else None

    @property
    def splash(self) -> bool:
        """Whether attention uses splash.py, which has no scores in memory."""
        return self.kernel == "splash"

    @property
    def ring(self) -> int:
        """Devices in an attention ring; 1 without a ring."""
        return 1 if self.ulysses else self.contexts

    @property
    def zigzag(self) -> bool:
        """Whether a ring device has an early and a late chunk of each sequence: if some layers have no window."""
        return self.ring > 1 and (self.config.full_attention_every is not None or Reach.of(self.config) is None)

    @property
    def loops_ring(self) -> bool:
        """Whether a ring without a window compiles to a loop of n-2 hops; a loop of one hop is inlined."""
        return self.ring > 3

    @property
    def pieces(self) -> int:
        """Number of consecutive token ranges into which the ring's devices split a sequence."""
        return 2 * self.ring if self.zigzag else self.ring

    @property
    def chunk(self) -> int:
        """Tokens of each of a ring device's two chunks of a sequence."""
        return self.config.sequence // (2 * self.ring)

    @property
    def computed_keys(self) -> int:
        """Keys computed per query. XLA's dense attention has scores for all.

        Splash attention in a ring of n devices computes 2n - 1 chunk pairs, and two with a causal mask, for the queries
        of two chunks.
        """
        tokens = self.config.sequence
        if self.splash and self.ring > 1:
            return (2 * self.ring - 1) * self.chunk // 2 + computed_keys(self.chunk, None)
        if self.splash:
            return computed_keys(tokens, self.reach)
        return self.skipping.computed_keys(tokens, self.pieces) if self.skipping else tokens

    @property
    def earlier_tokens(self) -> int:
        """Tokens of other devices whose keys and values a ring with a window receives."""
        if self.ring == 1 or self.skipping is None:
            return 0
        pieces = self.tokens * self.pieces // self.config.sequence  # on this device
        return pieces * self.skipping.earlier(self.config.sequence, self.pieces)

    @property
    def query_features(self) -> int:
        """Features of this device's query heads."""
        return self.config.query_features // self.tensors

    @property
    def head_features(self) -> int:
        """Features that attention mixes, of this device's heads."""
        return self.config.head_features // self.tensors

    @property
    def key_features(self) -> int:
        """Features of this device's KV heads."""
        return self.config.key_features // self.tensors

    @property
    def attended_key_features(self) -> int:
        """Features of the KV heads that attention takes, with replicas for Ulysses (`QKV.for_devices`)."""
        if not self.ulysses:
            return self.key_features
        head_dim = self.config.head_dim
        return math.lcm(self.key_features // head_dim, self.contexts) * head_dim

    @property
    def attended_kv_features(self) -> int:
        """Features of the keys and values that attention takes."""
        return self.query_features + self.head_features if self.has_latents else 2 * self.attended_key_features

    @property
    def attended_features(self) -> int:
        """Features of queries, keys, values and attention's output together."""
        return self.query_features + self.head_features + self.attended_kv_features

    @property
    def has_latents(self) -> bool:
        """Whether keys and values are computed from latents."""
        return self.config.latent_rank is not None

    @property
    def sends_latents(self) -> bool:
        """Whether devices that split the tokens exchange latents instead of keys and values."""
        return self.contexts > 1 and self.has_latents and self.train.context_payload != "expanded"

    @property
    def keeps_expanded(self) -> bool:
        """Whether keys and values are kept for the backward pass, and not only latents."""
        return self.contexts > 1 and self.has_latents and not self.sends_latents

    @property
    def expansions(self) -> tuple[int, int]:
        """How often keys and values are computed from latents besides once forward.

        The first number is for tokens of other devices of a ring, each with its gradients; the second is of the
        backward pass, which computes them again.

        Compilers merge recomputation with the backward pass's, except of what went through a ring's loop.
        """
        if not self.has_latents:
            return 0, 0
        arrived = self.ring - 1 if self.sends_latents else 0
        if self.train.remat == "full":
            return arrived, arrived * (2 if self.loops_ring else 1)
        return arrived, 0 if self.keeps_expanded else arrived + 1

    @property
    def expanded_features(self) -> tuple[int, int]:
        """Features of keys and of values that are computed from latents."""
        sizes = self.config.dim_sizes
        return sizes["plain_key_features"] // self.tensors, sizes["head_features"] // self.tensors

    @property
    def latents(self) -> int:
        """Features of a token's latents and its rotary key."""
        return self.config.dim_sizes["latents_and_key"]

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
        """Bytes per element in the compute dtype."""
        return jnp.dtype(self.train.dtype).itemsize


def share_of(part: type[Part], share: Share) -> Share:
    """What a device computes of one part of a layer, with the reach of its attention."""
    return replace(share, dense=True) if part.dense else share


def attention_shares(share: Share) -> tuple[Share, ...]:
    """What a device computes of each attention part of a layer."""
    return tuple(share_of(part, share) for part in block_of(share.config).parts.values() if part.attends)
