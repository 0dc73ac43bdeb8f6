"""Model sizes as a frozen dataclass."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta

from strategies.gpt_requirements import OF_EXPERTS, require_fitting
from strategies.infeasible import Infeasible
from strategies.schema import Amount, Positive, require_types

AttentionPattern = Literal["strided", "fixed"]
BalanceOver = Literal["batch", "sequence"]
Router = Literal["softmax", "renormalised", "sigmoid"]
Layers = Annotated[int, Meta(ge=1, le=100_000)]
Size = Annotated[int, Meta(ge=1, le=2**40)]
"""A size of a model or batch. The bound is far above all existing sizes, so that sums over sizes are fast and fit into
63 bits."""


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a decoder-only transformer; by default a GPT-2 (Radford et al. 2019, section 2.3).

    It has `layers` layers, a residual stream of `embed` features, and sequences of `sequence` tokens. By default `mlp`
    is 4 x `embed`, `head_size` is `embed` / `heads`, and `key_heads` is `heads`. The vocabulary is padded to a multiple
    of `vocab_multiple`, also on one device (`vocab_rows`). `tied` shares the token table. Attention is dense unless it
    has a window or a stride (model/attention/reach.py). A layer is one block (model/block.py).

    Attributes:
        key_heads: number of KV heads, each shared by heads / key_heads query heads (Ainslie et al. 2023, "GQA").
        latent_rank: latents of a token, from which keys and values of all heads are computed: multi-head latent
            attention in place of the block's own (model/latent_attention.py). None: no latents. The next three fields
            need it, and `head_size` is then that of queries and keys, with their rotary features.
        query_rank: latents from which queries are computed; None: they are computed from the residual stream.
        rotary_size: rotary features of queries and keys. All heads share a token's rotary key.
        value_size: features of a head's value.
        block: the kind of its blocks, one of `BLOCKS` (model/block.py). It decides on norm, positions, MLP and biases:
            "gpt2", "llama" (RMSNorm, rotary positions, SwiGLU, no biases), "qwen2" (llama with biases of queries, keys
            and values), "qwen3" (llama with a norm of each query head and key head), "olmoe" (llama with a norm of all
            queries and one of all keys) or "gpt_oss" (llama with YaRN, sinks, all biases, and clamped experts).
        norm_epsilon: added to the mean of squares in norms.
        rope_theta: the base of the angles of rotary positions (Su et al. 2021, "RoFormer", section 3.2.2).
        rope_factor: factor by which Llama 3.1's scaling, or YaRN, slows the slowest rotations; 1: no scaling
            (model/rotary.py).
        rope_mscale: latent attention multiplies scores by (0.1 rope_mscale ln rope_factor + 1)^2 (`mscale_all_dim` of
            DeepSeek's models). It needs both.
        attention_window: tokens that a token attends to, itself included; None: all earlier tokens.
        attention_stride: distance between far tokens that it also attends to (strided), or tokens of a block (fixed).
        attention_pattern: "strided" or "fixed" (Child et al. 2019, section 4.3).
        attention_summary: with "fixed", the tokens at the end of each block that all later blocks attend to.
        full_attention_every: every N-th layer uses full attention; N layers form one scanned block. None: none does.
        mtp_loss: factor of the loss of multi-token prediction, for which one more block predicts the token after the
            next (model/mtp.py); 0: no such block.
        experts: experts per layer, in place of its MLP (model/experts.py); None: a dense model. The fields below need
            experts.
        dense_layers: number of leading layers that have an MLP, of `mlp` hidden features, instead of experts.
        experts_per_token: experts that the router chooses for a token.
        expert_mlp: hidden features of an expert; default: the MLP's.
        shared_mlp: hidden features of an additional expert that takes all tokens; None: no such expert.
        router: how it scores experts (model/router.py).
        routing: "learned": tokens go to the experts with the highest scores. Otherwise their position in the sequence
            decides, for benchmarks of (im)balance: "balanced", "zipf=1.2" (any exponent) or "one" (all to the same
            experts); see `forced` in model/router.py.
        routed_scale: factor of the weights of the chosen experts. This field and the next three need router="sigmoid".
        router_bias_rate: by how much an expert's bias moves after each step, up with fewer choices than the mean and
            down with more (core/optimizer.py). Biases are added to scores only to choose experts. 0: fixed biases;
            None: no biases.
        router_groups: number of groups of equally many experts. A token chooses only among the experts of
            `groups_per_token` groups, those with the largest sums of their two highest scores.
        groups_per_token: see `router_groups`.
        capacity_factor: expert capacity as a multiple of the balanced load, for each group of `expert_group` tokens.
            Tokens beyond it are dropped. None: no token is dropped.
        expert_group: consecutive tokens of a sequence that form a group; default: the whole sequence.
        balance_loss: factor of the load-balancing loss of each layer.
        balance_over: the tokens among which experts are balanced: those of the batch, or microbatch, or of a sequence
            (model/experts.py).
        router_z_loss: factor of (log Z)^2 of each token in each layer, Z the denominator of the router's softmax.

    Raises:
        Infeasible: a field has the wrong type or is out of range, `heads` does not divide `embed` without `head_size`,
            `key_heads` does not divide `heads`, `full_attention_every` does not divide `layers`, the options of
            attention exclude each other, or a field has no effect.
    """

    layers: Layers
    embed: Size
    heads: Size
    vocab: Size = 50257
    sequence: Size = 1024
    mlp: Size | None = None
    tied: bool = True
    vocab_multiple: Size = 128
    attention_window: Size | None = None
    attention_stride: Size | None = None
    attention_pattern: AttentionPattern = "strided"
    attention_summary: Size = 1
    full_attention_every: Annotated[int, Meta(ge=2)] | None = None
    head_size: Size | None = None
    key_heads: Size | None = None
    latent_rank: Size | None = None
    query_rank: Size | None = None
    rotary_size: Size | None = None
    value_size: Size | None = None
    block: str = "gpt2"
    norm_epsilon: Positive = 1e-5
    rope_theta: Positive = 10_000.0
    rope_factor: Annotated[float, Meta(ge=1)] = 1.0
    rope_mscale: Positive = 1.0
    mtp_loss: Amount = 0.0
    experts: Size | None = None
    dense_layers: Annotated[int, Meta(ge=0, le=100_000)] = 0
    experts_per_token: Size = 2
    expert_mlp: Size | None = None
    shared_mlp: Size | None = None
    router: Router = "renormalised"
    routing: str = "learned"
    routed_scale: Positive = 1.0
    router_bias_rate: Amount | None = None
    router_groups: Size = 1
    groups_per_token: Size = 1
    capacity_factor: Positive | None = None
    expert_group: Size | None = None
    balance_loss: Amount = 0.0
    balance_over: BalanceOver = "batch"
    router_z_loss: Amount = 0.0

    def __post_init__(self) -> None:
        require_types(self, Infeasible)
        require_fitting(self)

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.head_size or self.embed // self.heads

    @property
    def value_dim(self) -> int:
        """Features of a head's value."""
        return self.value_size or self.head_dim

    @property
    def head_features(self) -> int:
        """Features that attention mixes, of all heads; `embed` unless `head_size` or `value_size` is set."""
        return self.heads * self.value_dim

    @property
    def query_features(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_dim

    @property
    def key_features(self) -> int:
        """Features of all KV heads: of their keys, and of their values."""
        return (self.key_heads or self.heads) * self.head_dim

    def copied(self, devices: int) -> "GPTConfig":
        """The model as held by `devices` devices that split its heads, with one KV head each (core/gradients.py)."""
        keys = self.key_heads or self.heads
        more = devices > keys and devices % keys == 0 and self.heads % devices == 0
        return replace(self, key_heads=devices) if more else self

    @property
    def mlp_dim(self) -> int:
        """Hidden features of the MLP."""
        return self.mlp or 4 * self.embed

    @property
    def blocks(self) -> int:
        """Blocks of the stack: the layers except leading dense ones, divided by `full_attention_every`."""
        return (self.layers - self.dense_layers) // self.layers_in_block

    @property
    def layers_in_block(self) -> int:
        """Layers per block."""
        return self.full_attention_every or 1

    @property
    def all_blocks(self) -> int:
        """Blocks of the stack plus leading dense layers and the MTP block."""
        return self.blocks + self.dense_layers + (self.mtp_loss > 0)

    @property
    def lead(self) -> "GPTConfig | None":
        """A model of only the leading dense layers; None without any."""
        if not self.dense_layers:
            return None
        plain = {each.name: each.default for each in fields(self) if each.name in ("experts", *OF_EXPERTS)}
        return replace(self, layers=self.dense_layers, mtp_loss=0.0, **plain)

    @property
    def mtp(self) -> "GPTConfig | None":
        """A model of only the MTP block; None without it."""
        return replace(self, layers=self.layers_in_block, dense_layers=0, mtp_loss=0.0) if self.mtp_loss else None

    @property
    def group_tokens(self) -> int:
        """Tokens of a group; an expert takes at most `capacity` of them."""
        return self.expert_group or self.sequence

    @property
    def capacity(self) -> int:
        """Upper bound on a group's tokens per expert: C = ceil(k T / E x factor), or all T."""
        if self.experts is None or self.capacity_factor is None:
            return self.group_tokens
        balanced = self.experts_per_token * self.group_tokens / self.experts
        capacity = math.ceil(round(balanced * self.capacity_factor, 6))  # 110.00000000000001 is 110
        return min(self.group_tokens, capacity)

    @cached_property
    def dim_sizes(self) -> Mapping[str, int]:
        """Sizes of all weight dims by name, without padding of the vocabulary."""
        return {
            "layers": self.blocks,
            "dense_layers": self.dense_layers,
            "mtp_layers": int(self.mtp_loss > 0),
            "mtp_inputs": 2 * self.embed,
            "vocab": self.vocab,
            "sequence": self.sequence,
            "embed": self.embed,
            "qkv": self.query_features // self.key_features + 2,
            "qk": self.query_features // self.key_features + 1,
            "heads": self.heads,
            "head_size": self.head_dim,
            "query_latents": self.query_rank or 0,
            "latents": self.latent_rank or 0,
            "latents_and_key": (self.latent_rank or 0) + (self.rotary_size or 0),
            "query_features": self.query_features,
            "plain_key_features": self.heads * (self.head_dim - (self.rotary_size or 0)),
            "head_features": self.head_features,
            "key_features": self.key_features,
            "mlp": self.mlp_dim,
            "experts": self.experts or 0,
            "routes": self.experts or 0,
            "expert_mlp": self.expert_mlp or self.mlp_dim,
            "shared_mlp": self.shared_mlp or 0,
        }

    def vocab_rows(self, shards: int = 1) -> int:
        """Size of the padded vocabulary: a multiple of `vocab_multiple` (128, as in Megatron-LM) and of `shards`.

        If the shards divide the one-device padding there is no more padding, so that compared steps do equal work.

        >>> [GPTConfig(layers=12, embed=768, heads=12).vocab_rows(shards) for shards in (1, 2, 8, 3, 5)]
        [50304, 50304, 50304, 50304, 50560]
        """
        rows = math.ceil(self.vocab / self.vocab_multiple) * self.vocab_multiple
        multiple = math.lcm(self.vocab_multiple, shards)
        return rows if rows % shards == 0 else math.ceil(self.vocab / multiple) * multiple
