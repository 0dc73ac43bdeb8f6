"""What is trained and how: frozen dataclasses, and the published sizes as data."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from strategies.names import Named

Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
Attention = Literal["auto", "xla", "cudnn"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1"]
Gather = Literal["layer", "step"]
Compression = Literal["none", "int8", "onebit"]
ContextAttention = Literal["auto", "ring", "ulysses"]
_KNOWN = {
    "dtype": Dtype,
    "reduce_dtype": Dtype,
    "remat": Remat,
    "attention": Attention,
    "schedule": PipelineSchedule,
    "context_attention": ContextAttention,
    "gather": Gather,
    "compression": Compression,
}


class Infeasible(ValueError):
    """A model, mesh and batch that do not fit together; the message names the numbers and the legal values."""


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT-2 (Radford et al. 2019, section 2.3). `mlp` is 4 x `embed` unless given.

    The vocabulary is padded to a multiple of `vocab_multiple`, on one device as on many: see `vocab_rows`.

    Raises:
        Infeasible: a size below one, or `heads` that do not divide `embed`.
    """

    layers: int
    embed: int
    heads: int
    vocab: int = 50257
    sequence: int = 1024
    mlp: int | None = None
    tied: bool = True
    vocab_multiple: int = 128

    def __post_init__(self) -> None:
        """Refuse sizes that no GPT has."""
        for name in ("layers", "embed", "heads", "vocab", "sequence", "mlp", "vocab_multiple"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise Infeasible(f"{name}={size}; it must be at least 1")
        if self.embed % self.heads:
            raise Infeasible(f"heads={self.heads} does not divide embed={self.embed}; {legal(self.embed, 'it')}")

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.embed // self.heads

    @property
    def mlp_dim(self) -> int:
        """Features of the hidden layer of the MLP."""
        return self.mlp or 4 * self.embed

    @property
    def dim_sizes(self) -> Mapping[str, int]:
        """Every dim that the model's weights have, by name; the vocabulary without padding."""
        return {
            "layers": self.layers,
            "vocab": self.vocab,
            "sequence": self.sequence,
            "embed": self.embed,
            "qkv": 3,
            "head_features": self.embed,
            "mlp": self.mlp_dim,
        }

    def vocab_rows(self, shards: int = 1) -> int:
        """The vocabulary padded to a multiple of 128, as Megatron-LM pads it, and no further if the shards divide that.

        So steps that are compared do equal work: on 2, 4 or 8 shards there are as many rows as on one device.

        >>> [PRESETS["gpt2"].vocab_rows(shards) for shards in (1, 2, 8, 3, 5)]
        [50304, 50304, 50304, 50304, 50560]
        """
        rows = math.ceil(self.vocab / self.vocab_multiple) * self.vocab_multiple
        each = math.lcm(self.vocab_multiple, shards)
        return rows if rows % shards == 0 else math.ceil(self.vocab / each) * each


@dataclass(frozen=True)
class TrainConfig:
    """One training step: AdamW (Loshchilov & Hutter 2019) behind clipping by the global norm.

    Attributes:
        batch_size: sequences in a global batch.
        microbatches: parts a batch is cut into: accumulated one after another, or sent through a pipeline.
        dtype: of the computation; parameters and optimizer state are float32. "float32" is that on every backend,
            without the shortcuts (TF32, bfloat16 passes) that accelerators take by default.
        reduce_dtype: of gradients while they are summed over devices; their sums over microbatches are float32.
        remat: what the backward pass recomputes: nothing, all but the outputs of matmuls, or whole blocks.
        attention: "cudnn" (GPUs, bfloat16 only), "xla", or "auto", which takes the first where it can.
        unroll: layers in one iteration of the loop over them.
        schedule: the order in which stages work on microbatches.
        chunks: parts of the layers that a stage holds where the schedule is "interleaved"; it is one in the others.
        sequence_parallel: the tensor axis splits the residual stream, too, over its tokens.
        gather: fsdp makes weights whole layer by layer, whenever a layer runs, or all of them once a step.
        regather: layer by layer, fsdp gathers weights again for the backward pass, and does not keep them for it.
        bucket_bytes: data sums gradients in buckets of so many bytes, or each weight's by itself.
        compression: data sums gradients in bytes, or after the first steps momentum in bits, with error feedback.
        compression_warmup: the steps before it sums momentum in bits.
        context_attention: how devices that each hold a part of every sequence attend to the rest of it; "auto" is a
            ring, but where a pipeline has stages "ulysses".
        logits_bytes: that float32 logits may cost a device at once: it computes them for so many tokens at a time,
            again in the backward pass. None is enough for all tokens.
        z_loss: times the square of log Z, for each token besides the cross entropy (Chowdhery et al. 2022, "PaLM",
            section 5); Z is what softmax divides by.

    Raises:
        Infeasible: microbatches that do not divide the batch, a norm that nothing passes, or an unknown option.
    """

    batch_size: int
    microbatches: int = 1
    dtype: Dtype = "float32"
    remat: Remat = "dots"
    attention: Attention = "auto"
    unroll: int = 1
    schedule: PipelineSchedule = "1f1b"
    chunks: int = 2
    sequence_parallel: bool = True
    gather: Gather = "layer"
    regather: bool = True
    bucket_bytes: int | None = None
    compression: Compression = "none"
    compression_warmup: int = 20
    reduce_dtype: Dtype = "float32"
    context_attention: ContextAttention = "auto"
    logits_bytes: int | None = None
    z_loss: float = 0.0
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be cut or is not known."""
        for name in ("batch_size", "microbatches", "unroll", "chunks", "compression_warmup"):
            if getattr(self, name) < 1:
                raise Infeasible(f"{name}={getattr(self, name)}; it must be at least 1")
        if self.bucket_bytes is not None and self.bucket_bytes < 4:
            raise Infeasible(f"bucket_bytes={self.bucket_bytes}; it must be at least 4, for one gradient in float32")
        if not self.clip_norm > 0:
            raise Infeasible(f"clip_norm={self.clip_norm}; it must be above 0, and inf clips nothing")
        if not self.z_loss >= 0:
            raise Infeasible(f"z_loss={self.z_loss}; it must be at least 0")
        if self.batch_size % self.microbatches:
            problem = f"microbatches={self.microbatches} does not divide batch_size={self.batch_size}"
            raise Infeasible(f"{problem}; {legal(self.batch_size, 'it')}")
        for name, known in _KNOWN.items():
            if getattr(self, name) not in get_args(known):
                raise Infeasible(f"{name}={getattr(self, name)!r}; it can be {', '.join(get_args(known))}")
        _require_alone(self)


def _require_alone(train: TrainConfig) -> None:
    """Refuse other ways to sum gradients beside compression."""
    if train.compression == "none":
        return
    if train.bucket_bytes is not None:
        problem = f"bucket_bytes={train.bucket_bytes} does not go with compression={train.compression}"
        raise Infeasible(f"{problem}, which has no buckets; leave one of them out")
    if train.reduce_dtype != "float32":
        problem = f"reduce_dtype={train.reduce_dtype} does not go with compression={train.compression}"
        raise Infeasible(f"{problem}, which sends codes; leave one of them out")


def legal(number: int, subject: str) -> str:
    """The divisors of a number, as the way out that an error names.

    >>> legal(8, "tensor")
    'tensor can be 1, 2, 4 or 8'
    """
    divisors = [str(d) for d in range(1, number + 1) if number % d == 0]
    return f"{subject} can be {' or '.join(filter(None, [', '.join(divisors[:-1]), divisors[-1]]))}"


def require_divides(axis: str, size: int, **numbers: int) -> None:
    """Refuse a mesh axis that does not divide a number of the model.

    Raises:
        Infeasible: names both numbers and the legal sizes.
    """
    for name, number in numbers.items():
        if number % size:
            raise Infeasible(f"{axis}={size} does not divide {name}={number}; {legal(number, axis)}")


_GPT2 = GPTConfig(layers=12, embed=768, heads=12)
_GPT3 = dataclasses.replace(_GPT2, sequence=2048)

PRESETS: Mapping[str, GPTConfig] = MappingProxyType(
    Named(
        "preset",
        {
            "nano": GPTConfig(layers=8, embed=128, heads=8, vocab=256, sequence=64),
            "micro": GPTConfig(layers=8, embed=256, heads=8, vocab=2048, sequence=128, tied=False),
            # Radford et al. 2019, table 2, as released.
            "gpt2": _GPT2,
            "gpt2-medium": dataclasses.replace(_GPT2, layers=24, embed=1024, heads=16),
            "gpt2-large": dataclasses.replace(_GPT2, layers=36, embed=1280, heads=20),
            "gpt2-xl": dataclasses.replace(_GPT2, layers=48, embed=1600, heads=25),
            # Brown et al. 2020, table 2.1; 13b is printed there with 5140 wide, which 40 heads do not divide.
            "gpt3-6.7b": dataclasses.replace(_GPT3, layers=32, embed=4096, heads=32),
            "gpt3-13b": dataclasses.replace(_GPT3, layers=40, embed=5120, heads=40),
            "gpt3-175b": dataclasses.replace(_GPT3, layers=96, embed=12288, heads=96),
        },
    )
)
