"""Software stacks: which kernels a layer is made of, and what runs beside what. Facts from their code, not fitted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from strategies.config import ReduceDtype

FIRST_AND_LAST = "first and last"
"""Only the first stage embeds, and only the last computes the loss."""


class ForwardBackward(NamedTuple):
    """A number for the forward pass and one for the backward pass."""

    forward: float
    backward: float


NONE = ForwardBackward(0, 0)


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
        embedding_and_head: which pipeline stages embed and compute the loss: the "first and last", or "all".
        outermost: mesh axes that lie outside of all others when devices are numbered host by host, outermost first.
        lockstep: whether all stages of a pipeline exchange arrays at the end of each tick.
    """

    name: str
    fused_attention: bool
    score_bytes: ForwardBackward
    residual_bytes: ForwardBackward
    mlp_bytes: ForwardBackward
    logit_bytes: float
    optimizer_bytes: float
    kernels: ForwardBackward
    repeats: Literal["all", "all but the last"]
    reduce_dtype: ReduceDtype
    overlaps_gradients: bool
    prefetches: bool
    embedding_and_head: Literal["first and last", "all"]
    lockstep: bool
    outermost: tuple[str, ...] = ()
    hides_sums: bool = False
    halves_hide: float = 0
    shares_cards: bool = False
    softmax_multiple: int = 1
    unfused_bytes: ForwardBackward = NONE
    unfused_kernels: ForwardBackward = NONE


MEGATRON = Stack(
    name="Megatron-LM",
    # As of 2021 and 2022: megatron/model/{transformer,fused_softmax,fused_bias_gelu,fused_layer_norm}.py. Bytes of fp16
    # arrays, and one byte for each dropout mask.
    fused_attention=False,
    score_bytes=ForwardBackward(4 + 5, 5 + 6),  # softmax, dropout; their gradients
    # Without the fused softmax: a kernel each to make float32, scale, mask in place, compute and make fp16; gradients.
    softmax_multiple=4,  # FusedScaleMaskSoftmax.forward, attn_batch_size
    unfused_bytes=ForwardBackward(6 + 8 + 8 + 8 + 6 + 5, 5 + 6 + 12 + 8 + 8 + 6),
    unfused_kernels=ForwardBackward(5 - 1, 5 - 1),
    residual_bytes=ForwardBackward(
        2 * 4 + 2 * 7, 2 * 10 + 2 * 7 + 2 * 6
    ),  # norms, bias and dropout and sum; gradients, sums
    mlp_bytes=ForwardBackward(4, 8),
    # cast, maximum, difference, exponentials, sum, quotient; gradient, cast back (megatron/mpu/cross_entropy.py)
    logit_bytes=6 + 4 + 8 + 8 + 4 + 8 + 8 + 6,
    optimizer_bytes=62,  # casts, unscaling, norm, clipping and Adam, each a pass over float32 arrays
    kernels=ForwardBackward(25, 45),
    repeats="all",
    reduce_dtype="bfloat16",
    overlaps_gradients=False,
    prefetches=False,
    embedding_and_head="first and last",
    lockstep=False,
    outermost=("pipeline",),  # megatron/mpu/initialize.py
    hides_sums=True,  # megatron/mpu/layers.py, LinearWithGradAccumulationAndAsyncCommunication
    shares_cards=True,  # not read from code, but seen in the runs of three clusters (docs/guides/machines.md)
)
MPT = Stack(
    name="PyTorch FSDP",
    # llm-foundry's MPT: low-precision LayerNorm, no biases, no dropout, unfused GELU, Triton's FlashAttention.
    fused_attention=True,
    score_bytes=ForwardBackward(0, 0),
    residual_bytes=ForwardBackward(2 * 4 + 2 * 6, 2 * 10 + 2 * 6),
    mlp_bytes=ForwardBackward(4, 6),
    logit_bytes=34,
    optimizer_bytes=62,
    kernels=ForwardBackward(25, 50),
    repeats="all but the last",
    reduce_dtype="bfloat16",
    overlaps_gradients=True,
    prefetches=True,
    embedding_and_head="all",
    lockstep=False,
)
MESHMARK = Stack(
    name="meshmark",
    # XLA fuses what lies between matmuls into single passes.
    fused_attention=True,
    score_bytes=ForwardBackward(10, 16),
    residual_bytes=ForwardBackward(2 * 4 + 2 * 6, 2 * 8 + 2 * 6),
    mlp_bytes=ForwardBackward(4, 6),
    logit_bytes=24,
    optimizer_bytes=32,  # read and write parameters and two moments, read gradients, in float32; and their norm
    kernels=ForwardBackward(12, 25),
    repeats="all but the last",
    reduce_dtype="float32",
    overlaps_gradients=False,
    prefetches=True,
    embedding_and_head="all",
    lockstep=True,
    # In schedules that XLA compiled for H100, v5e and v5p (docs/experiments), 15% to 20% less is waited for.
    halves_hide=0.16,
)
STACKS: Mapping[str, Stack] = {stack.name: stack for stack in (MEGATRON, MPT, MESHMARK)}
