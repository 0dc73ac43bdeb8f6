"""Software stacks: which kernels a layer is made of, and what runs beside what. Facts from their code, not fitted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from strategies.config import ReduceDtype

FIRST_AND_LAST = "first and last"
"""Only the first stage embeds, and only the last computes the loss."""


MEASURED = (
    *("score_bytes", "logit_bytes", "optimizer_bytes", "fresh_bytes", "kept_bytes", "matrix_flops", "cores"),
    *("wait_seconds", "again_seconds", "alone_launches", "cold_bytes", "cache_bytes", "column_dim", "transposed_dim"),
    *("transposed_bytes", "skew", "step_skew"),
)
"""Stack fields that calibration overwrites."""


class Passes(NamedTuple):
    """A number for the forward pass and one for the backward pass."""

    forward: float
    backward: float


NONE = Passes(0, 0)


@dataclass(frozen=True)
class Stack:
    """What a training program does besides matmuls and collectives. Bytes are for a compute dtype of two bytes.

    Attributes:
        name: as published tables name it.
        fused_attention: whether scores stay on the chip.
        score_bytes: read and written by softmax and dropout, for each score, if attention is not fused.
        softmax_multiple: the fused softmax takes only multiples of so many sequences x heads of a device.
        unfused_bytes: like `score_bytes`, where it does not take them.
        unfused_kernels: launched for a layer besides `kernels`, where it does not take them.
        residual_bytes: read and written by norms, dropout and residual sums, for each element of the residual stream.
        mlp_bytes: read and written by the activation function, for each hidden element of the MLP.
        logit_bytes: read and written by the loss, forward and backward, for each logit.
        optimizer_bytes: read and written by the optimizer, gradient clipping and casts, for each parameter.
        kernels: launched for a layer; with recomputation of attention alone, where a stack has that.
        repeats: what full recomputation repeats of a layer: all of it, or all but its last matmul and the sum after it,
            whose results the backward pass does not need.
        reduce_dtype: of gradients while they are summed over devices.
        overlaps_gradients: whether replicas sum gradients beside the backward pass, whatever `TrainConfig.reduce` says.
        prefetches: whether weights are gathered, and their gradients scattered, beside the compute of other layers.
        hides_sums: whether gradients of a branch's inputs are summed or scattered over the tensor axis beside the
            matmul of the gradient of its first weight.
        halves_hide: share of the sums over the tensor axis that runs beside the other half of the batch with
            `TrainConfig.halves`.
        shares_cards: whether groups that have several but not all devices of their hosts use the same network cards.
        full_kernels: launched for a layer besides `kernels` with `remat="full"`; None if that repeats the forward pass.
        none_kernels: likewise with `remat="none"`.
        ends: who embeds and computes the loss in a pipeline: the "first and last" stage, or "all" stages.
        outermost: mesh axes that lie outside of all others when devices are numbered host by host, outermost first.
        lockstep: whether all stages of a pipeline exchange arrays at the end of each tick.
        shared: whether devices are virtual and share the cores of one host. Then a step takes the time of all devices'
            work together, launches of kernels included, and nothing overlaps.
        score_blocks: whether attention skips the blocks of scores that causality masks, and computes scores again in
            the backward pass (strategies/model/attention/dense.py).
        combines: whether collectives of several arrays are combined into one.
        hop_kernels: launched for a layer for each hop of ring attention.
        end_kernels: launched for the embedding, the head and the loss of a microbatch.
        tick_kernels: launched for a tick of a pipeline, besides those of layers and ends.
        update_kernels: launched for the optimizer.
        weight_bytes: read and written for each weight of a layer and microbatch, to take it out of the stack of all
            layers, and to put its gradient into another.
        update_bytes: read and written for each weight of all layers that is gathered at once and its gradient, to bring
            both into another layout and back.
        cold_bytes: that take as long to stream as a byte of weights, gradients and optimizer state that caches do not
            hold.
        cache_bytes: of the host's last cache.
        column_dim: a matmul [m,k] x [k,n] takes 1 + column_dim / n times as long, because the first operand is packed.
        transposed_dim: the same of gradients of weights, where the operand that is packed is transposed.
        transposed_bytes: that take as long to stream as copying an element where a collective joins or splits the
            innermost dim of an array, because it is brought into a layout in which that is the outermost.
        accumulation_bytes: read and written for each parameter to accumulate the gradient of a microbatch.
        fresh_bytes: that take as long to read and write as the system takes to provide a byte of temporaries. The C
            library returns large ones to the system after each step (`RETURNED` in predicted.py).
        matrix_flops: of attention that take as long as one more matrix in a batch of matmuls.
        cores: of the host that virtual devices share.
        kept_bytes: that take as long to read and write as keeping a byte for the backward pass: it is written, put into
            the stack of all layers, and read. Residuals of all devices are larger than caches.
        wait_seconds: for which the cores idle while all devices of a host wait for each other in a collective after
            work of their own, when their threads have been taken off the cores.
        again_seconds: the same in a collective right after another one, or with a core for each device.
        token_bytes: read and written for each element of the residual stream to bring it into the layout in which it is
            gathered or scattered over a tensor axis.
        skew: idle time of the cores where all devices of a host wait for each other after the work of a layer, as a
            share of the most there can be: that the last device does all of its work alone, on one core.
        step_skew: the same share at the end of a step, after all of its work.
        alone_launches: that a kernel of a layer costs if there are no more devices than cores. The threads of a kernel
            wait for each other, and no other device has work for their cores.
    """

    name: str
    fused_attention: bool
    score_bytes: Passes
    residual_bytes: Passes
    mlp_bytes: Passes
    logit_bytes: float
    optimizer_bytes: float
    kernels: Passes
    repeats: Literal["all", "all but the last"]
    reduce_dtype: ReduceDtype
    overlaps_gradients: bool
    prefetches: bool
    ends: Literal["first and last", "all"]
    lockstep: bool
    outermost: tuple[str, ...] = ()
    hides_sums: bool = False
    halves_hide: float = 0
    shares_cards: bool = False
    shared: bool = False
    score_blocks: bool = False
    softmax_multiple: int = 1
    unfused_bytes: Passes = NONE
    unfused_kernels: Passes = NONE
    combines: bool = True
    hop_kernels: Passes = NONE
    full_kernels: Passes | None = None
    none_kernels: Passes = NONE
    end_kernels: float = 0
    tick_kernels: float = 0
    update_kernels: float = 0
    weight_bytes: Passes = NONE
    update_bytes: float = 0
    cold_bytes: float = 1
    cache_bytes: float = 0
    column_dim: float = 0
    transposed_dim: float = 0
    transposed_bytes: float = 0
    accumulation_bytes: float = 0
    fresh_bytes: float = 0
    matrix_flops: float = 0
    cores: int = 0
    kept_bytes: float = 0
    wait_seconds: float = 0
    again_seconds: float = 0
    token_bytes: float = 0
    skew: float = 0
    step_skew: float = 0
    alone_launches: float = 1


MEGATRON = Stack(
    name="Megatron-LM",
    # As of 2021 and 2022: megatron/model/{transformer,fused_softmax,fused_bias_gelu,fused_layer_norm}.py. Bytes of fp16
    # arrays, and one byte for each dropout mask.
    fused_attention=False,
    score_bytes=Passes(4 + 5, 5 + 6),  # softmax, dropout; their gradients
    # Without the fused softmax: a kernel each to make float32, scale, mask in place, compute and make fp16; gradients.
    softmax_multiple=4,  # FusedScaleMaskSoftmax.forward, attn_batch_size
    unfused_bytes=Passes(6 + 8 + 8 + 8 + 6 + 5, 5 + 6 + 12 + 8 + 8 + 6),
    unfused_kernels=Passes(5 - 1, 5 - 1),
    residual_bytes=Passes(2 * 4 + 2 * 7, 2 * 10 + 2 * 7 + 2 * 6),  # norms, bias and dropout and sum; gradients, sums
    mlp_bytes=Passes(4, 8),
    # cast, maximum, difference, exponentials, sum, quotient; gradient, cast back (megatron/mpu/cross_entropy.py)
    logit_bytes=6 + 4 + 8 + 8 + 4 + 8 + 8 + 6,
    optimizer_bytes=62,  # casts, unscaling, norm, clipping and Adam, each a pass over float32 arrays
    kernels=Passes(25, 45),
    repeats="all",
    reduce_dtype="bfloat16",
    overlaps_gradients=False,
    prefetches=False,
    ends="first and last",
    lockstep=False,
    outermost=("pipeline",),  # megatron/mpu/initialize.py
    hides_sums=True,  # megatron/mpu/layers.py, LinearWithGradAccumulationAndAsyncCommunication
    shares_cards=True,  # not read from code, but seen in the runs of three clusters (docs/guides/machines.md)
)
MPT = Stack(
    name="PyTorch FSDP",
    # llm-foundry's MPT: low-precision LayerNorm, no biases, no dropout, unfused GELU, Triton's FlashAttention.
    fused_attention=True,
    score_bytes=Passes(0, 0),
    residual_bytes=Passes(2 * 4 + 2 * 6, 2 * 10 + 2 * 6),
    mlp_bytes=Passes(4, 6),
    logit_bytes=34,
    optimizer_bytes=62,
    kernels=Passes(25, 50),
    repeats="all but the last",
    reduce_dtype="bfloat16",
    overlaps_gradients=True,
    prefetches=True,
    ends="all",
    lockstep=False,
)
MESHMARK = Stack(
    name="meshmark",
    # XLA fuses what lies between matmuls into single passes.
    fused_attention=True,
    score_bytes=Passes(10, 16),
    residual_bytes=Passes(2 * 4 + 2 * 6, 2 * 8 + 2 * 6),
    mlp_bytes=Passes(4, 6),
    logit_bytes=24,
    optimizer_bytes=32,  # read and write parameters and two moments, read gradients, in float32; and their norm
    kernels=Passes(12, 25),
    repeats="all but the last",
    reduce_dtype="float32",
    overlaps_gradients=False,
    prefetches=True,
    ends="all",
    lockstep=True,
    # In schedules that XLA compiled for H100, v5e and v5p (docs/experiments), 15% to 20% less is waited for.
    halves_hide=0.16,
)
VIRTUAL = Stack(
    name="meshmark on virtual devices",
    fused_attention=False,
    score_bytes=Passes(10, 16),
    # Bytes and kernels are counted in programs that JAX 0.10 compiles for CPUs; without those of matmuls and attention.
    residual_bytes=Passes(64, 96),
    mlp_bytes=Passes(8, 14),
    logit_bytes=MESHMARK.logit_bytes,
    optimizer_bytes=MESHMARK.optimizer_bytes,
    kernels=Passes(54, 74),
    # An array that is kept is put into the stack of all layers by a kernel of its own.
    full_kernels=Passes(-12, 28),
    none_kernels=Passes(12, 1),
    repeats="all but the last",
    reduce_dtype="float32",
    overlaps_gradients=False,
    prefetches=False,
    ends="all",
    lockstep=True,
    shared=True,
    score_blocks=True,
    combines=False,
    hop_kernels=Passes(35, 27),
    end_kernels=45,
    tick_kernels=24,
    update_kernels=100,
    weight_bytes=Passes(4 + 4, 4 + 4 + 4 + 4 + 4),  # copied out, twice; the gradient copied into a stack of zeros
    update_bytes=8 + 8,
    token_bytes=4 + 4,
    accumulation_bytes=12,
    kept_bytes=4,
    alone_launches=4,
)
STACKS: Mapping[str, Stack] = {stack.name: stack for stack in (MEGATRON, MPT, MESHMARK, VIRTUAL)}
