"""Configuration of model and training as frozen dataclasses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from msgspec import Meta

from strategies.infeasible import Infeasible, require_divides
from strategies.schema import Amount, Count, Positive, Whole, require_types

Dtype = Literal["float32", "bfloat16", "float16"]
ReduceDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
Attention = Literal["auto", "xla", "cudnn", "splash"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1"]
Gather = Literal["layer", "step"]
Reduce = Literal["auto", "layer", "step"]
Switch = Literal["auto", "on", "off"]
Compression = Literal["none", "int8", "onebit"]
Master = Literal["none", "float32"]
ContextAttention = Literal["auto", "ring", "ulysses"]
AttentionPattern = Literal["strided", "fixed"]
Router = Literal["softmax", "renormalised", "sigmoid"]
LOSS_SCALES = 1.0, 2.0**64
"""The smallest and the largest loss scale. Both, and the losses that they scale, are far from the ends of float32."""


Layers = Annotated[int, Meta(ge=1, le=100_000)]
Size = Annotated[int, Meta(ge=1, le=2**40)]
"""A size of a model or of a batch. Far above all that exists, so that sums over sizes end soon and fit into 63 bits."""
Beta = Annotated[float, Meta(ge=0, lt=1)]
Unroll = Layers | Literal["auto"]
LossScale = Annotated[float, Meta(ge=LOSS_SCALES[0], le=LOSS_SCALES[1])]


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a decoder-only transformer; by default a GPT-2 (Radford et al. 2019, section 2.3).

    It has `layers` blocks, a residual stream of `embed` features, and sequences of `sequence` tokens. Unless given,
    `mlp` is 4 x `embed`, `head_size` is `embed` / `heads`, and `key_heads` is `heads`. The vocabulary is padded to a
    multiple of `vocab_multiple`, also on one device (`vocab_rows`). `tied` shares the token table. Attention is dense
    unless it has a window or a stride (model/attention/reach.py).

    Attributes:
        key_heads: heads of keys and of values, each for as many heads of queries (Ainslie et al. 2023, "GQA").
        block: the kind of its blocks, one of `BLOCKS` (model/block.py). It decides on norm, positions, MLP and biases:
            "gpt2", "llama" (RMSNorm, rotary positions, SwiGLU, no biases), "qwen2" (llama with biases of queries, keys
            and values) or "qwen3" (llama with a norm of each head of queries and of keys).
        norm_epsilon: what norms add to the mean of squares.
        rope_theta: the base of the angles of rotary positions (Su et al. 2021, "RoFormer", section 3.2.2).
        rope_factor: by how much Llama 3.1's scaling slows the slowest rotations; 1 is none (model/rotary.py).
        attention_window: tokens that a token attends to, itself included; None for all before it.
        attention_stride: distance of the tokens that it also attends to (strided), or tokens of a block (fixed).
        attention_pattern: "strided" or "fixed" (Child et al. 2019, section 4.3).
        attention_summary: with "fixed", the tokens at the end of each block that all later blocks attend to.
        experts: of each layer, in place of its MLP (model/experts.py); None for a dense model. The fields below are of
            models with experts.
        experts_per_token: experts that the router chooses for a token.
        expert_mlp: hidden features of an expert; by default those of the MLP.
        shared_mlp: hidden features of an expert that takes all tokens, beside the others; None for none.
        router: how it scores experts (model/router.py).
        routed_scale: factor of the weights of the chosen experts with router="sigmoid".
        capacity_factor: an expert takes at most this times the tokens that it has when all have equally many, of each
            group of `expert_group` tokens. Further tokens are dropped. None: no token is dropped.
        expert_group: tokens of a group, consecutive ones of a sequence; by default a sequence.
        balance_loss: factor of the load-balancing loss of each layer.
        router_z_loss: factor of (log Z)^2 of each token in each layer, Z the denominator of the router's softmax.

    Raises:
        Infeasible: a field is of another type or out of range, without `head_size` `heads` does not divide `embed`,
            `key_heads` does not divide `heads`, the options of attention exclude each other, or a field of experts has
            no meaning.
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
    head_size: Size | None = None
    key_heads: Size | None = None
    block: str = "gpt2"
    norm_epsilon: Positive = 1e-5
    rope_theta: Positive = 10_000.0
    rope_factor: Annotated[float, Meta(ge=1)] = 1.0
    experts: Size | None = None
    experts_per_token: Size = 2
    expert_mlp: Size | None = None
    shared_mlp: Size | None = None
    router: Router = "renormalised"
    routed_scale: Positive = 1.0
    capacity_factor: Positive | None = None
    expert_group: Size | None = None
    balance_loss: Amount = 0.0
    router_z_loss: Amount = 0.0

    def __post_init__(self) -> None:
        """Check types, ranges and sizes."""
        require_types(self, Infeasible)
        if self.head_size is None:
            require_divides("heads", self.heads, "it", embed=self.embed)
        if self.key_heads is not None:
            require_divides("key_heads", self.key_heads, "it", heads=self.heads)
        _require_pattern(self)
        _require_experts(self)

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.head_size or self.embed // self.heads

    @property
    def head_features(self) -> int:
        """Features of all attention heads together; `embed` unless `head_size` is given."""
        return self.heads * self.head_dim

    @property
    def key_features(self) -> int:
        """Features of all heads of keys together, and of those of values."""
        return (self.key_heads or self.heads) * self.head_dim

    @property
    def mlp_dim(self) -> int:
        """Features of the hidden layer of the MLP."""
        return self.mlp or 4 * self.embed

    @property
    def group_tokens(self) -> int:
        """Tokens of a group, of which an expert takes at most `capacity`."""
        return self.expert_group or self.sequence

    @property
    def capacity(self) -> int:
        """The most tokens of a group that an expert takes: C = ceil(k T / E x factor), or all T."""
        if self.experts is None or self.capacity_factor is None:
            return self.group_tokens
        balanced = self.experts_per_token * self.group_tokens / self.experts
        return min(self.group_tokens, math.ceil(balanced * self.capacity_factor))

    @property
    def dim_sizes(self) -> Mapping[str, int]:
        """Sizes of all dims of the model's weights, by name. The vocabulary is without padding."""
        return {
            "layers": self.layers,
            "vocab": self.vocab,
            "sequence": self.sequence,
            "embed": self.embed,
            "qkv": self.head_features // self.key_features + 2,
            "qk": self.head_features // self.key_features + 1,
            "head_size": self.head_dim,
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

        There is no further padding if the shards divide it as padded on one device, so compared steps do equal work.

        >>> [GPTConfig(layers=12, embed=768, heads=12).vocab_rows(shards) for shards in (1, 2, 8, 3, 5)]
        [50304, 50304, 50304, 50304, 50560]
        """
        rows = math.ceil(self.vocab / self.vocab_multiple) * self.vocab_multiple
        multiple = math.lcm(self.vocab_multiple, shards)
        return rows if rows % shards == 0 else math.ceil(self.vocab / multiple) * multiple


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training step with AdamW (Loshchilov & Hutter 2019) and clipping by the global norm.

    Attributes:
        batch_size: sequences in a global batch.
        microbatches: parts into which the batch is split. Their gradients are accumulated, or a pipeline schedules
            them.
        dtype: compute dtype. Optimizer state is float32, and so are parameters unless `master` says otherwise.
            "float32" means float32 on every backend, without the reduced precision (TF32, bfloat16 passes) that
            accelerators use by default. "float16" has dynamic loss scaling (core/loss_scaling.py).
        master: "float32": zero1 and zero2 hold parameters in `dtype`, and float32 master weights in shards
            (core/sharded_update.py). "none": parameters are float32.
        reduce_dtype: of gradients while they are summed over devices. Sums over microbatches are float32. It cannot be
            float16, in which sums of scaled gradients would overflow.
        reduce: whether gradients are summed over replicas layer by layer in the backward loop over layers ("layer"), or
            all after it ("step"). "auto" is "layer" on GPUs if that sends no more, otherwise "step".
        remat: what the backward pass recomputes: nothing ("none"), all but the outputs of matmuls ("dots"), or whole
            blocks ("full").
        attention: the kernel: "cudnn" (GPUs, not in float32), "splash" (TPUs, not in float16), "xla", or "auto", which
            is one of the first two where possible.
        unroll: most layers in one iteration of the loop over layers; all have as many, one if their number is prime.
            "auto" is one, or more on chips that hide gathers of weights so (backends/backend.py).
        schedule: the pipeline schedule.
        chunks: model chunks on each pipeline stage with schedule "interleaved". The other schedules have one.
        sequence_parallel: whether the tensor axis also splits the residual stream over its tokens.
        gather: whether fsdp gathers each layer's weights when it runs ("layer"), or all weights once a step ("step").
        regather: with gather="layer", whether fsdp gathers weights again for the backward pass instead of keeping them.
        prefetch: with gather="layer", whether fsdp gathers weights one layer ahead (model/layers.py). "auto" is "on"
            where possible on GPUs and most TPUs (backends/backend.py).
        halves: whether a layer that a tensor axis splits runs on halves of the batch (model/halves.py). "auto" is "on"
            where possible on GPUs and most TPUs (backends/backend.py).
        bucket_bytes: the data strategy sums gradients in buckets of this many bytes, with reduce="layer" those of each
            layer; None sums each weight's by itself.
        compression: the data strategy sums gradients in 8 bits ("int8"), or after the warm-up momentum in 1 bit
            ("onebit"), with error feedback.
        compression_warmup: steps before "onebit" sums momentum in 1 bit.
        context_attention: how tokens attend to tokens on other devices of a context axis: "ring", "ulysses", or "auto":
            "ulysses" with pipeline stages or strides, and where GPUs have cuDNN's attention; otherwise "ring".
        logits_bytes: the most bytes that float32 logits may take on a device. They are computed for a chunk of tokens
            at a time, and recomputed in the backward pass. None: for all tokens at once.
        z_loss: factor of (log Z)^2, which is added to the cross entropy of each token; Z is the denominator of the
            softmax (Chowdhery et al. 2022, "PaLM", section 5).
        loss_scale: the loss scale of the first step, a power of two. It acts with float16 only.
        loss_scale_growth_steps: steps without overflow after which the loss scale is doubled.
        learning_rate: the highest; it is constant unless there is a warmup or a decay.
        warmup_steps: updates in which the learning rate rises linearly from near zero.
        decay_steps: updates, with those of the warmup, after which it has fallen to `final_learning_rate`, by a cosine;
            None: it does not fall.
        final_learning_rate: the learning rate after `decay_steps`.

    Raises:
        Infeasible: a field is of another type or out of range, `microbatches` does not divide `batch_size`, or
            compression is combined with another way to sum gradients.
    """

    batch_size: Size
    microbatches: Size = 1
    dtype: Dtype = "float32"
    master: Master = "none"
    remat: Remat = "dots"
    attention: Attention = "auto"
    unroll: Unroll = "auto"
    schedule: PipelineSchedule = "1f1b"
    chunks: Layers = 2
    sequence_parallel: bool = True
    gather: Gather = "layer"
    regather: bool = True
    prefetch: Switch = "auto"
    halves: Switch = "auto"
    bucket_bytes: Annotated[int, Meta(ge=4, le=2**62)] | None = None
    compression: Compression = "none"
    compression_warmup: Count = 20
    reduce: Reduce = "auto"
    reduce_dtype: ReduceDtype = "float32"
    context_attention: ContextAttention = "auto"
    logits_bytes: Count | None = None
    z_loss: Amount = 0.0
    loss_scale: LossScale = 2.0**15
    loss_scale_growth_steps: Count = 2000
    learning_rate: Amount = 3e-4
    warmup_steps: Whole = 0
    decay_steps: Count | None = None
    final_learning_rate: Amount = 0.0
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    epsilon: Positive = 1e-8
    weight_decay: Amount = 0.1
    clip_norm: Annotated[float, Meta(gt=0)] = 1.0  # inf clips nothing

    def __post_init__(self) -> None:
        """Check types and ranges, and what goes together."""
        require_types(self, Infeasible)
        if math.frexp(self.loss_scale)[0] != 0.5:
            raise Infeasible(f"loss_scale={self.loss_scale}; it must be a power of 2 from 1 to 2**64")
        require_divides("microbatches", self.microbatches, "it", batch_size=self.batch_size)
        _require_alone(self)
        _require_optimizer(self)

    @property
    def layers_in_loop(self) -> int:
        """`unroll` as a number; 1 for "auto" (fsdp.py resolves it for devices)."""
        return 1 if self.unroll == "auto" else self.unroll


def _require_optimizer(train: TrainConfig) -> None:
    """Refuse a final learning rate above the highest, and a decay of nothing or one that ends before the warmup."""
    peak, final, warmup, decay = train.learning_rate, train.final_learning_rate, train.warmup_steps, train.decay_steps
    if decay is not None and not peak:
        raise Infeasible(f"learning_rate={peak}; it must be above 0 with decay_steps")
    if final > peak:
        raise Infeasible(f"final_learning_rate={final}; it must be from 0 to learning_rate={peak}")
    if decay is not None and decay <= warmup:
        raise Infeasible(f"decay_steps={decay} ends before warmup_steps={warmup}; give more than {warmup} for both")


def _require_pattern(config: GPTConfig) -> None:
    """Refuse options of sparse attention that have no meaning together."""
    pattern, stride, summary = config.attention_pattern, config.attention_stride, config.attention_summary
    if stride is not None:
        require_divides("attention_stride", stride, "it", sequence=config.sequence)
    if pattern == "strided":
        if summary != 1:
            raise Infeasible(f"attention_summary={summary} is for attention_pattern=fixed; leave it out")
    elif stride is None:
        raise Infeasible("attention_pattern=fixed has blocks of attention_stride tokens; give attention_stride")
    elif config.attention_window is not None:
        problem = f"attention_window={config.attention_window} does not go with attention_pattern=fixed"
        raise Infeasible(f"{problem}, whose blocks have attention_stride={stride} tokens; leave one of them out")
    elif summary > stride:
        raise Infeasible(f"attention_summary={summary} is more than the attention_stride={stride} tokens of a block")


def _require_experts(config: GPTConfig) -> None:
    """Refuse more experts for a token than there are, groups that do not divide a sequence, and fields without effect.

    Routers that take scores of their own have no scale.
    """
    if config.experts is None:
        plain = {each.name: each.default for each in fields(GPTConfig) if each.name in OF_EXPERTS}
        if given := [name for name, default in plain.items() if getattr(config, name) != default]:
            raise Infeasible(f"{given[0]}={getattr(config, given[0])} is for a model with experts; give experts")
        return
    if config.experts_per_token > config.experts:
        raise Infeasible(f"experts_per_token={config.experts_per_token} is more than experts={config.experts}")
    require_divides("expert_group", config.group_tokens, "it", sequence=config.sequence)
    if config.routed_scale != 1 and config.router != "sigmoid":
        raise Infeasible(f"routed_scale={config.routed_scale} is for router=sigmoid; leave it out")


OF_EXPERTS = (
    *("experts_per_token", "expert_mlp", "shared_mlp", "router", "routed_scale", "capacity_factor"),
    *("expert_group", "balance_loss", "router_z_loss"),
)
"""Fields of `GPTConfig` that have a meaning with `experts` only."""


def _require_alone(train: TrainConfig) -> None:
    """Refuse other ways to sum gradients together with compression."""
    compresses, problem = train.compression != "none", f"does not go with compression={train.compression}"
    if compresses and train.bucket_bytes is not None:
        raise Infeasible(f"bucket_bytes={train.bucket_bytes} {problem}, which has no buckets; leave one of them out")
    if compresses and train.reduce_dtype != "float32":
        raise Infeasible(f"reduce_dtype={train.reduce_dtype} {problem}, which sends codes; leave one of them out")
