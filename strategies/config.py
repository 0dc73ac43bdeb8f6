"""Training options as a frozen dataclass."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from strategies.gpt_config import Layers, Size
from strategies.infeasible import Infeasible, require_divides
from strategies.schema import Amount, Count, Positive, Whole, require_types

Dtype = Literal["float32", "bfloat16", "float16"]
ReduceDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
Attention = Literal["auto", "xla", "cudnn", "splash"]
PipelineSchedule = Literal["gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "eager-zb", "zb-v", "dualpipe-v"]
Gather = Literal["layer", "step"]
Reduce = Literal["auto", "layer", "step"]
Switch = Literal["auto", "on", "off"]
Compression = Literal["none", "int8", "onebit"]
Master = Literal["none", "float32"]
ContextAttention = Literal["auto", "ring", "ulysses"]
ContextPayload = Literal["auto", "latent", "expanded"]
OptimizerName = Literal["adamw", "muon", "sgd"]
Matrices = Literal["auto", "gather", "deal", "gram", "block"]
MatrixScale = Literal["rms", "original"]
Dispatch = Literal["auto", "all_to_all", "all_gather"]
OF_AXES = (
    *("schedule", "chunks", "sequence_parallel", "gather", "regather", "prefetch", "halves", "bucket_bytes"),
    *("compression", "compression_warmup", "reduce", "reduce_dtype", "context_attention", "context_payload"),
    *("dispatch", "master"),
    "matrices",
)
"""Options that act through an axis (`Axis.options`). A strategy without such an axis refuses them (core/plan.py)."""
OFF: Mapping[str, Any] = {"reduce": "step", "prefetch": "off", "halves": "off", "compression": "none"}
"""Values of options that no axis resolves. Every strategy accepts them, so a resolved `TrainConfig` can be used again.
"""
NEEDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "chunks": ("schedule", ("interleaved",)),
    "regather": ("gather", ("layer",)),
    "compression_warmup": ("compression", ("onebit",)),
    "loss_scale": ("dtype", ("float16",)),
    "loss_scale_growth_steps": ("dtype", ("float16",)),
    "matrices": ("optimizer", ("muon",)),
    "by_head": ("optimizer", ("muon",)),
    "matrix_scale": ("optimizer", ("muon",)),
    "momentum": ("optimizer", ("muon", "sgd")),
    "nesterov": ("optimizer", ("muon", "sgd")),
    "momentum_dtype": ("optimizer", ("muon", "sgd")),
    "beta1": ("optimizer", ("adamw", "muon")),
    "beta2": ("optimizer", ("adamw", "muon")),
    "epsilon": ("optimizer", ("adamw", "muon")),
}
"""Options that have an effect only with some values of another option: its name, and these values."""
LOSS_SCALES = 1.0, 2.0**64
"""The smallest and largest loss scale. Both, and the losses that they scale, are far from the limits of float32."""


Beta = Annotated[float, Meta(ge=0, lt=1)]
Unroll = Layers | Literal["auto"]
LossScale = Annotated[float, Meta(ge=LOSS_SCALES[0], le=LOSS_SCALES[1])]


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training step, whose gradients are clipped by their global norm.

    Attributes:
        batch_size: sequences in a global batch.
        microbatches: parts into which the batch is split. Their gradients are accumulated, or a pipeline schedules
            them.
        dtype: compute dtype. Optimizer state is float32, and so are parameters unless `master` says otherwise.
            "float32" means float32 on every backend, without the reduced precision (TF32, bfloat16 passes) that
            accelerators use by default. "float16" has dynamic loss scaling (core/optimizer.py).
        master: "float32": zero1 and zero2 hold parameters in `dtype`, and float32 master weights in shards
            (core/shards.py). "none": parameters are float32.
        reduce_dtype: dtype of gradient sums over devices. Sums over microbatches and sums of experts' loads are always
            float32. It cannot be float16, in which sums of scaled gradients would overflow.
        reduce: whether gradients are summed over replicas layer by layer in the backward loop ("layer"), or all after
            it ("step"). "auto" is "layer" on GPUs if that sends no more bytes, otherwise "step".
        remat: what the backward pass recomputes: nothing ("none"), all but the outputs of matmuls ("dots"), or whole
            blocks ("full").
        attention: the kernel: "cudnn" (GPUs, not in float32), "splash" (TPUs, not in float16), "xla", or "auto", which
            is one of the first two where possible.
        unroll: largest number of layers per scan iteration; the largest divisor of the loop's layers up to it is used.
            "auto" is all layers where GPUs need no loop (`Plan.unrolls_all_layers`), otherwise one.
        schedule: the pipeline schedule. "auto" loses the least time by formula (`orders.best_schedule`).
        chunks: model chunks per pipeline stage with schedule "interleaved". Other schedules refuse it: a "-v" has two.
        sequence_parallel: whether the tensor axis also splits the residual stream by token.
        gather: whether fsdp gathers each layer's weights when it runs ("layer"), or all weights once a step ("step").
        regather: with gather="layer", whether fsdp gathers weights again for the backward pass instead of keeping them.
        prefetch: with gather="layer", whether fsdp gathers weights one layer ahead (model/layers.py). "auto" is "on"
            where possible on GPUs and most TPUs (backends/backend.py).
        halves: whether a layer that a tensor or an expert axis splits runs on halves of the batch (model/halves.py).
            "auto" is "on" where possible on GPUs and most TPUs (backends/backend.py).
        bucket_bytes: the data strategy sums gradients in buckets of this many bytes, with reduce="layer" separately for
            each layer. None: one sum per weight.
        compression: the data strategy sums gradients in 8 bits ("int8"), or after the warm-up momentum in 1 bit
            ("onebit"), with error feedback.
        compression_warmup: steps before "onebit" sums momentum in 1 bit.
        context_attention: how tokens attend to tokens on other devices of a context axis: "ring", "ulysses", or "auto":
            "ulysses" with pipeline stages or strides, and where GPUs have cuDNN's attention; otherwise "ring".
        context_payload: what devices of a context axis exchange of a model with latent attention: latents, from which
            each computes keys and values ("latent"), or keys and values ("expanded"). "auto" picks what has fewer
            bytes.
        dispatch: how tokens reach the experts on other devices of an expert axis: each choice is sent to its expert
            ("all_to_all"), or all tokens to all devices ("all_gather"). "auto" is the one that sends fewer bytes.
        logits_bytes: upper bound on the bytes of float32 logits per device. They are computed for one chunk of tokens
            at a time, and recomputed in the backward pass. None: for all tokens at once.
        z_loss: factor of (log Z)^2, which is added to the cross entropy of each token; Z is the denominator of the
            softmax (Chowdhery et al. 2022, "PaLM", section 5).
        loss_scale: the loss scale of the first step, a power of two. Only used with float16.
        loss_scale_growth_steps: consecutive steps without overflow after which the loss scale is doubled.
        optimizer: "adamw" (Loshchilov & Hutter 2019); "muon", which orthogonalises the momentum of each matrix, with
            AdamW for the rest (core/rules.py); or "sgd", with momentum.
        matrices: how devices that hold parts of a matrix orthogonalise it (core/newton_schulz.py). "auto" is "deal".
        by_head: whether Muon takes the queries, keys and values of each head as matrices, instead of those of a layer.
        matrix_scale: factor of Muon's updates: 0.2 sqrt(max(rows, columns)), with which they are as large as AdamW's
            ("rms"), or sqrt(max(1, outputs / inputs)) ("original").
        momentum: the share of the old momentum in the new, of matrices with Muon and of all weights with SGD.
        nesterov: whether that momentum is Nesterov's.
        momentum_dtype: dtype in which that momentum is kept.
        learning_rate: the peak; constant without warmup and decay.
        warmup_steps: updates in which the learning rate rises linearly from near zero.
        decay_steps: updates, including the warmup, after which a cosine decay reaches `final_learning_rate`; None: no
            decay.
        final_learning_rate: the learning rate after `decay_steps`.

    Raises:
        Infeasible: a field has the wrong type or is out of range, `microbatches` does not divide `batch_size`, or
            compression is combined with another way to sum gradients.
    """

    batch_size: Size
    microbatches: Size = 1
    dtype: Dtype = "float32"
    master: Master = "none"
    remat: Remat = "dots"
    attention: Attention = "auto"
    unroll: Unroll = "auto"
    schedule: PipelineSchedule | Literal["auto"] = "1f1b"
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
    context_payload: ContextPayload = "auto"
    dispatch: Dispatch = "auto"
    logits_bytes: Count | None = None
    z_loss: Amount = 0.0
    loss_scale: LossScale = 2.0**15
    loss_scale_growth_steps: Count = 2000
    optimizer: OptimizerName = "adamw"
    matrices: Matrices = "auto"
    by_head: bool = False
    matrix_scale: MatrixScale = "rms"
    momentum: Beta = 0.95
    nesterov: bool = True
    momentum_dtype: ReduceDtype = "float32"
    learning_rate: Amount = 3e-4
    warmup_steps: Whole = 0
    decay_steps: Count | None = None
    final_learning_rate: Amount = 0.0
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    epsilon: Positive = 1e-8
    weight_decay: Amount = 0.1
    clip_norm: Annotated[float, Meta(gt=0)] = 1.0  # inf: no clipping

    def __post_init__(self) -> None:
        require_types(self, Infeasible)
        if math.frexp(self.loss_scale)[0] != 0.5:
            raise Infeasible(f"loss_scale={self.loss_scale}; it must be a power of 2 from 1 to 2**64")
        require_divides("microbatches", self.microbatches, "it", batch_size=self.batch_size)
        _require_alone(self)
        _require_optimizer(self)

    @property
    def layers_in_loop(self) -> int:
        """`unroll` as a number; 1 for "auto", which a plan resolves for devices."""
        return 1 if self.unroll == "auto" else self.unroll

    @property
    def by_layer(self) -> bool:
        """Whether ZeRO splits the update of matrices by layer (core/placement.py): if Muon takes whole matrices.

        Sums in the backward loop over layers need parts of a layer.
        """
        return self.optimizer == "muon" and self.reduce != "layer"


DEFAULTS = {each.name: each.default for each in fields(TrainConfig)}
"""Default values of options."""


def idle_options(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Options that have no effect with the given values of others, which have their defaults where they are not given.

    >>> idle_options({"schedule": "interleaved", "gather": "step", "compression": "onebit", "dtype": "float16"})
    ('regather', 'matrices', 'by_head', 'matrix_scale', 'momentum', 'nesterov', 'momentum_dtype')
    """
    return tuple(name for name, (other, values) in NEEDS.items() if given.get(other, DEFAULTS[other]) not in values)


def without_idle(train: TrainConfig) -> TrainConfig:
    """The options, with defaults of those that have no effect with the others."""
    return replace(train, **{name: DEFAULTS[name] for name in idle_options(vars(train))})


def needed_for(name: str) -> str:
    """The values of another option that an option needs.

    >>> needed_for("momentum")
    'optimizer=muon or sgd'
    """
    other, values = NEEDS[name]
    return f"{other}={' or '.join(values)}"


def with_effect(options: tuple[tuple[str, Any], ...], dtype: Dtype) -> tuple[tuple[str, Any], ...]:
    """The options of a step without those that have no effect with the others.

    >>> with_effect((("schedule", "1f1b"), ("chunks", 4), ("loss_scale", 2.0)), "float16")
    (('schedule', '1f1b'), ('loss_scale', 2.0))
    """
    idle = idle_options({"dtype": dtype, **dict(options)})
    return tuple((name, value) for name, value in options if name not in idle)


def _require_optimizer(train: TrainConfig) -> None:
    """Refuse a final learning rate above the peak, and a decay from zero or one that ends before the warmup."""
    peak, final, warmup, decay = train.learning_rate, train.final_learning_rate, train.warmup_steps, train.decay_steps
    if decay is not None and not peak:
        raise Infeasible(f"learning_rate={peak}; it must be above 0 with decay_steps")
    if final > peak:
        raise Infeasible(f"final_learning_rate={final}; it must be from 0 to learning_rate={peak}")
    if decay is not None and decay <= warmup:
        raise Infeasible(f"decay_steps={decay} ends before warmup_steps={warmup}; set both to more than {warmup}")


def _require_alone(train: TrainConfig) -> None:
    """Refuse other ways to sum gradients together with compression."""
    compresses, problem = train.compression != "none", f"does not go with compression={train.compression}"
    if compresses and train.bucket_bytes is not None:
        raise Infeasible(f"bucket_bytes={train.bucket_bytes} {problem}, which has no buckets; omit one of them")
    if train.compression == "onebit" and train.optimizer != "adamw":
        raise Infeasible(f"compression=onebit compresses AdamW's momentum, not optimizer={train.optimizer}'s; use int8")
    if compresses and train.reduce_dtype != "float32":
        raise Infeasible(f"reduce_dtype={train.reduce_dtype} {problem}, which sends codes; omit one of them")
