"""Software stacks: rules of what waits for what, and constants of the kernels. Both are read from code, not fitted.

A new stack is its rules, and constants of its own or of a stack with the same kernels:

    MINE = replace(MPT, name="mine", reduce_dtype="float32")
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from strategies.config import ReduceDtype

Collective = Literal["gathers", "gradients", "input gradients", "halves"]
"""Collectives that a stack may overlap with compute:

- gathers of sharded weights, and reduce-scatters of their gradients;
- all-reduces of gradients over replicas;
- reductions over the tensor axis of the gradients of a branch's inputs;
- all reductions over the tensor axis, with `TrainConfig.halves`.
"""
Until = Literal["at once", "weight gradient", "layer"]
"""When the device waits for a collective: before anything else, after the matmul of the gradient of the branch's first
weight, or at the end of the layer."""
ZeroStage = Literal["none", "zero1", "zero2", "zero3"]
HALVES_SHARE = 0.16
"""Share of the reductions that `halves` overlaps with the other half of the batch. In schedules that XLA compiled for
H100, v5e and v5p (docs/experiments), 15% to 20% less is waited for."""


class ForwardBackward(NamedTuple):
    """A number for the forward pass and one for the backward pass."""

    forward: float
    backward: float


NONE = ForwardBackward(0, 0)


@dataclass(frozen=True)
class KernelCosts:
    """Constants: what kernels read and write besides the operands of matmuls. Bytes are for a dtype of two bytes.

    Attributes:
        score_bytes: by softmax and dropout, for each attention score; None if attention is fused.
        residual_bytes: by norms, dropout and residual sums, for each element of the residual stream.
        mlp_bytes: by the activation function, for each hidden element of the MLP.
        logit_bytes: by the loss, forward and backward, for each logit.
        optimizer_bytes: by the optimizer, gradient clipping and casts, for each parameter.
        launches: kernels launched for a layer; with recomputation of attention alone, where a stack has that.
        softmax_multiple: the fused softmax takes only multiples of so many sequences x heads of a device.
        unfused_bytes: like `score_bytes`, where it does not take them.
        unfused_launches: further kernels of a layer, where it does not take them.
    """

    score_bytes: ForwardBackward | None
    residual_bytes: ForwardBackward
    mlp_bytes: ForwardBackward
    logit_bytes: float
    optimizer_bytes: float
    launches: ForwardBackward
    softmax_multiple: int = 1
    unfused_bytes: ForwardBackward = NONE
    unfused_launches: ForwardBackward = NONE


class Recipe(NamedTuple):
    """What the recipes of a stack do, where a published run does not say.

    Attributes:
        optimizer_sharded: the stage of ZeRO along the data axis; along the fsdp axis it is the third.
        sequence_parallel: whether the tensor axis also splits the tokens between matmuls.
        recompute: "none", "full", or "selective", which recomputes attention.
    """

    optimizer_sharded: ZeroStage = "none"
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"


PLAIN = Recipe()


@dataclass(frozen=True)
class Stack:
    """Rules of a training program, and the constants of its kernels.

    Attributes:
        name: as published tables name it.
        kernels: constants.
        waits: overlapped collectives -> when the device waits for them; for all others at once.
        repeats: what full recomputation repeats of a layer: all of it, or all but its last matmul and the reduction
            after it, whose results the backward pass does not need.
        embedding_and_head: which pipeline stages embed and compute the loss.
        lockstep: whether all stages of a pipeline exchange arrays at the end of each tick, or each when it has them.
        outermost: mesh axes that lie outside of all others when devices are numbered host by host, outermost first.
        shares_cards: whether groups that have several but not all devices of their hosts use the same network cards.
        reduce_dtype: of gradients while they are reduced over devices.
        recipe: what published runs are taken to do where they do not say.
    """

    name: str
    kernels: KernelCosts
    waits: Mapping[Collective, Until] = field(hash=False)
    repeats: Literal["all", "all but the last"] = "all but the last"
    embedding_and_head: Literal["first and last", "all"] = "all"
    lockstep: bool = False
    outermost: tuple[str, ...] = ()
    shares_cards: bool = False
    reduce_dtype: ReduceDtype = "bfloat16"
    recipe: Recipe = PLAIN

    def until(self, collective: Collective) -> Until:
        """When the device waits for a collective."""
        return self.waits.get(collective, "at once")


MEGATRON = Stack(
    # As of 2021 and 2022: megatron/model/{transformer,fused_softmax,fused_bias_gelu,fused_layer_norm}.py. Bytes of fp16
    # arrays, and one byte for each dropout mask.
    name="Megatron-LM",
    waits={"input gradients": "weight gradient"},  # mpu/layers.py, LinearWithGradAccumulationAndAsyncCommunication
    repeats="all",
    embedding_and_head="first and last",
    outermost=("pipeline",),  # megatron/mpu/initialize.py
    shares_cards=True,  # not read from code, but seen in the runs of three clusters (docs/guides/machines.md)
    kernels=KernelCosts(
        score_bytes=ForwardBackward(4 + 5, 5 + 6),  # softmax, dropout; their gradients
        # Without the fused softmax: a kernel each to make float32, scale, mask, compute and make fp16; gradients.
        softmax_multiple=4,  # FusedScaleMaskSoftmax.forward, attn_batch_size
        unfused_bytes=ForwardBackward(6 + 8 + 8 + 8 + 6 + 5, 5 + 6 + 12 + 8 + 8 + 6),
        unfused_launches=ForwardBackward(5 - 1, 5 - 1),
        # norms, bias and dropout and sum; gradients, sums
        residual_bytes=ForwardBackward(2 * 4 + 2 * 7, 2 * 10 + 2 * 7 + 2 * 6),
        mlp_bytes=ForwardBackward(4, 8),
        # cast, maximum, difference, exponentials, sum, quotient; gradient, cast back (megatron/mpu/cross_entropy.py)
        logit_bytes=6 + 4 + 8 + 8 + 4 + 8 + 8 + 6,
        optimizer_bytes=62,  # casts, unscaling, norm, clipping and Adam, each a pass over float32 arrays
        launches=ForwardBackward(25, 45),
    ),
)
MPT = Stack(
    # llm-foundry's MPT: low-precision LayerNorm, no biases, no dropout, unfused GELU, Triton's FlashAttention.
    name="PyTorch FSDP",
    waits={"gathers": "layer", "gradients": "layer"},
    kernels=KernelCosts(
        score_bytes=None,
        residual_bytes=ForwardBackward(2 * 4 + 2 * 6, 2 * 10 + 2 * 6),
        mlp_bytes=ForwardBackward(4, 6),
        logit_bytes=34,
        optimizer_bytes=62,
        launches=ForwardBackward(25, 50),
    ),
)
MESHMARK = Stack(
    # XLA fuses what lies between matmuls into single passes.
    name="meshmark",
    waits={"gathers": "layer", "halves": "layer"},
    lockstep=True,
    reduce_dtype="float32",
    kernels=KernelCosts(
        score_bytes=None,
        residual_bytes=ForwardBackward(2 * 4 + 2 * 6, 2 * 8 + 2 * 6),
        mlp_bytes=ForwardBackward(4, 6),
        logit_bytes=24,
        optimizer_bytes=32,  # read and write parameters and two moments, read gradients, in float32; and their norm
        launches=ForwardBackward(12, 25),
    ),
)
MEGATRON_CORE = Stack(
    # As of 2025, with TransformerEngine: cuDNN's attention, a kernel each for RMSNorm, rotary positions, SwiGLU and
    # loss, and Adam of shards. Bytes are what such kernels read and write. Sums of gradients overlap only on request.
    name="Megatron-Core",
    waits={"input gradients": "weight gradient"},  # core/tensor_parallel/layers.py
    repeats="all",
    embedding_and_head="first and last",
    outermost=("pipeline",),  # core/parallel_state.py, order "tp-cp-ep-dp-pp"
    reduce_dtype="float32",  # accumulate_allreduce_grads_in_fp32, which training/arguments.py sets with --bf16
    # --use-distributed-optimizer and --sequence-parallel are in its examples; recomputation has to be asked for.
    recipe=Recipe("zero1", sequence_parallel=True),
    kernels=KernelCosts(
        score_bytes=None,
        residual_bytes=ForwardBackward(2 * 4 + 2 * 6 + 5, 2 * 6 + 2 * 6 + 5),  # norms, sums, rotary positions
        mlp_bytes=ForwardBackward(6, 10),  # gate and up read, their product written; gradients
        logit_bytes=24,
        optimizer_bytes=30 + 4 + 8 + 4,  # Adam with weights in two bytes, norm, clipping, zeros for the next step
        launches=ForwardBackward(14, 28),
    ),
)
MEGATRON_BRIDGE = replace(
    # Its recipes overlap sums of gradients (overlap_grad_reduce).
    MEGATRON_CORE,
    name="Megatron-Bridge",
    waits={**MEGATRON_CORE.waits, "gradients": "layer"},
)
TORCHTITAN = Stack(
    # FSDP2 gathers and scatters beside the layers, and torch.compile fuses what lies between matmuls.
    name="torchtitan",
    waits={"gathers": "layer", "gradients": "layer"},
    reduce_dtype="float32",  # MixedPrecisionPolicy(reduce_dtype=float32)
    recipe=Recipe("zero3", sequence_parallel=True, recompute="selective"),  # parallelize.py; the default of its recipes
    kernels=KernelCosts(
        score_bytes=None,
        residual_bytes=ForwardBackward(2 * 4 + 2 * 6 + 5, 2 * 8 + 2 * 6 + 5),
        mlp_bytes=ForwardBackward(6, 10),
        logit_bytes=24,
        optimizer_bytes=28 + 4 + 8,  # fused AdamW in float32, norm, clipping
        launches=ForwardBackward(15, 30),
    ),
)
MAXTEXT = Stack(
    # XLA, as for meshmark, without its pipelines.
    name="MaxText",
    waits={"gathers": "layer", "gradients": "layer"},
    recipe=Recipe("zero3", recompute="full"),  # configs/base.yml: ici_fsdp_parallelism=-1, remat_policy "full"
    reduce_dtype="bfloat16",  # XLA reduces gradients in the dtype of the matmuls
    kernels=replace(MESHMARK.kernels, mlp_bytes=ForwardBackward(6, 10)),
)
STACKS: Mapping[str, Stack] = {
    stack.name: stack for stack in (MEGATRON, MPT, MESHMARK, MEGATRON_CORE, MEGATRON_BRIDGE, TORCHTITAN, MAXTEXT)
}
