"""The stacks, by name. They are read from code, not fitted.

A new stack is its rules, and constants of its own or of a stack with the same kernels:

    MINE = replace(MPT, name="mine", reduce_dtype="float32")
"""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.simulate.megatron_stacks import (
    MEGATRON,
    MEGATRON_BRIDGE,
    MEGATRON_BRIDGE_ALLTOALL,
    MEGATRON_BRIDGE_GRAPHS,
    MEGATRON_CORE,
    NEMO,
    NEMO_UNFUSED,
)
from benchmarks.simulate.stack import (
    EAGER_LOSS,
    NOT_COPIED,
    ForwardBackward,
    GatherScatter,
    KeptTraffic,
    KernelCosts,
    Memory,
    Recipe,
    Stack,
)

ROW_SECONDS = 40e-9
"""To copy a row by its index on a TPU, whatever its length: fitted to two runs of Qwen3 235B on TPU7x."""

MPT = Stack(
    # llm-foundry's MPT: low-precision LayerNorm, no biases, no dropout, unfused GELU, Triton's FlashAttention.
    name="PyTorch FSDP",
    waits={"gathers": "layer", "gradients": "layer"},
    # Weights, gradients and Adam's moments in float32; loss_fn: fused_crossentropy, in bfloat16.
    memory=Memory(0, 0, 4 + 4 + 4 + 4, 2 + 2),
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
MESHMARK_ON_GPUS = replace(
    # As XLA compiles 19 steps of `single` for H100 with JAX 0.11.2: blocks of GPT-2, Llama and Qwen3 of several widths,
    # with each `remat`, and with and without a loop. The bytes of fusions and copies by these constants are at most 8%
    # from those of the programs (docs/experiments/2026-11-26-gpu-seconds.md). cuDNN's attention adds 7 bytes to the
    # backward pass of an element of queries and keys: it casts their gradients, and multiplies outputs by theirs. Norms
    # of both read them once more forward, and twice backward (docs/experiments/2026-11-26-qk-norm.md; 9%).
    MESHMARK,
    kernels_have_latency=True,  # XLA launches its command buffers, CUDA graphs, ahead
    kernels=replace(
        MESHMARK.kernels,
        residual_bytes=ForwardBackward(14, 20),
        mlp_bytes=ForwardBackward(6, 9),
        head_bytes=ForwardBackward(2, 20 + 7),
        head_norm_bytes=ForwardBackward(2, 4),
        # Traced layers have 72 to 83 kernels, and in a loop 86 to 119.
        launches=ForwardBackward(30, 50),
        stacked_launches=ForwardBackward(5, 10),
        logit_bytes=8,  # written by a matmul; read for the maximum and the sum; read and written as gradients
        sequence_bytes=GatherScatter(4, 4),  # `Backend.gathers_outermost_only`
        kept=KeptTraffic(1.2, 8),
        stacked=KeptTraffic(2, 27),
        cast_ahead_bytes=12,  # twice a slice of two bytes is copied, instead of 20 for slices of four and their casts
    ),
)
TORCHTITAN = Stack(
    # FSDP2 gathers and scatters beside the layers, and torch.compile fuses what lies between matmuls.
    name="torchtitan",
    waits={"gathers": "layer", "gradients": "layer", "keys and values": "layer"},
    reduce_dtype="float32",  # MixedPrecisionPolicy(reduce_dtype=float32)
    uses_torchao=True,
    recipe=Recipe("zero3", sequence_parallel=True, recompute="selective"),  # parallelize.py; the default of its recipes
    selective="every second matmul",  # activation_checkpoint.py, _get_custom_policy
    first_tables=1,  # the embedding is a module of its own
    meshes=(("data", "fsdp", "context", "tensor"),),  # parallel_dims.py; what its pipelines overlap was not read
    # Weights, gradients and Adam's moments in float32; with the loss compiled, logits and their gradients in bfloat16.
    memory=Memory(0, 0, 4 + 4 + 4 + 4, 2 + 2, error=0.1),
    kernels=KernelCosts(
        score_bytes=None,
        residual_bytes=ForwardBackward(2 * 4 + 2 * 6 + 5, 2 * 8 + 2 * 6 + 5),
        mlp_bytes=ForwardBackward(6, 10),
        logit_bytes=24,
        optimizer_bytes=28 + 4 + 8,  # fused AdamW in float32, norm, clipping
        copies_shards=True,  # torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
        sequence_bytes=GatherScatter(4, 4),  # torch/distributed/_functional_collectives.py
        launches=ForwardBackward(15, 30),
    ),
)
TORCHTITAN_2024 = replace(
    # Until pull request 1033, of April 2025, only layers were compiled.
    TORCHTITAN,
    memory=Memory(0, 0, 4 + 4 + 4 + 4, EAGER_LOSS, error=0.1),
)
TORCHTITAN_ASYNC = replace(
    # Its matmuls take chunks of other devices as they come (torch/distributed/_symmetric_memory), and need no copies.
    # Nothing is counted as hidden: with all chunks but one hidden, published runs would be predicted a fifth too fast.
    TORCHTITAN,
    kernels=replace(TORCHTITAN.kernels, sequence_bytes=NOT_COPIED),
)
TORCHTITAN_EAGER = replace(
    # Without torch.compile each operation is a kernel. RMSNorm: cast, square, mean, product, cast, product, most in
    # float32; rotary positions: cast, complex product, cast, and for Qwen3 in two bytes two products, a negated half, a
    # concatenation and a sum; sums; and their gradients. Qwen3 also has norms of queries and keys.
    TORCHTITAN,
    name="torchtitan, eager",
    constants_of="torchtitan",
    # The allocator reserves about a tenth more than is in use, in the published runs.
    memory=Memory(0, 0, 4 + 4 + 4 + 4, EAGER_LOSS, 1.1, error=0.1),
    kernels=replace(
        TORCHTITAN.kernels,
        residual_bytes=ForwardBackward(2 * 36 + 2 * 6, 2 * 70 + 2 * 6),
        head_bytes=ForwardBackward(20, 20),
        head_norm_bytes=ForwardBackward(36, 70),
        mlp_bytes=ForwardBackward(4 + 6, 6 + 6 + 6),
        logit_bytes=6 + 4 + 8 + 4 + 12,
        sequence_bytes=GatherScatter(4, 3 * 4),  # the copy before a scatter has a third of the rate of others
        sum_bytes=2 + 2 + 2,
        launches=ForwardBackward(60, 120),
    ),
)
KEMPNERFORGE = replace(
    # distributed/parallel.py and tensor_parallel.py: FSDP2 over DTensors, one model compiled as a whole.
    TORCHTITAN,
    name="KempnerForge",
    selective="attention",
    gathers_inputs="projection",  # ColwiseParallel(input_layouts=Shard(1)) of each projection
    gathers_logits=True,  # the head has output_layouts=Replicate()
    pads_experts=True,  # grouped_expert_forward in model/moe.py, as of April 2026
    first_tables=2,  # the root module has both
    # model.to(bfloat16), and AdamW's moments as the weights. Gradients are reduced after the last microbatch alone, and
    # until then summed whole, in float32 (grad.py, maybe_no_sync). Logits, their logarithms and the gradients of both
    # are in bfloat16 (loss.py).
    memory=Memory(0, 2, 2 + 2 + 2, 2 + 2 + 2 + 2, unreduced_bytes=4, error=0.2),
    meshes=(("data", "fsdp", "expert", "tensor"),),  # distributed/parallel.py
)
MAXTEXT = Stack(
    # XLA, as for meshmark, without its pipelines.
    name="MaxText",
    waits={"gathers": "layer", "gradients": "layer"},
    meshes=(("data", "fsdp", "context", "expert", "tensor"),),  # configs/base.yml, mesh_axes
    # Weights, gradients and Adam's moments in float32; logits and their gradients in bfloat16, and XLA fuses the loss.
    memory=Memory(0, 0, 4 + 4 + 4 + 4, 2 + 2),
    recipe=Recipe("zero3", recompute="full"),  # configs/base.yml: ici_fsdp_parallelism=-1, remat_policy "full"
    reduce_dtype="bfloat16",  # XLA reduces gradients in the dtype of the matmuls
    kernels=replace(
        MESHMARK.kernels,
        mlp_bytes=ForwardBackward(6, 10),
        # Both are of TPUs alone (`Machine.running`).
        row_seconds=ROW_SECONDS,  # layers/moe.py
        head_multiple=128,  # splash attention
    ),
)
MAXTEXT_BFLOAT16 = replace(MAXTEXT, memory=Memory(0, 0, 2 + 2 + 2 + 2, 2 + 2))
"""With weight_dtype=bfloat16: gradients and moments are as weights."""
STACKS: Mapping[str, Stack] = {
    stack.name: stack
    for stack in (
        *(MEGATRON, MPT, MESHMARK, MEGATRON_BRIDGE, MEGATRON_CORE),
        *(MEGATRON_BRIDGE_ALLTOALL, MEGATRON_BRIDGE_GRAPHS, NEMO, NEMO_UNFUSED),
        *(TORCHTITAN, TORCHTITAN_EAGER, KEMPNERFORGE, MAXTEXT),
    )
}
STACK_OF: Mapping[str, tuple[Stack, ...]] = {
    "Megatron-LM": (MEGATRON, MEGATRON_CORE),
    "Megatron-DeepSpeed": (MEGATRON,),
    "PyTorch FSDP": (MPT,),
    "Megatron-Bridge": (MEGATRON_BRIDGE,),
    "NeMo": (NEMO,),
    "torchtitan": (TORCHTITAN,),
    "KempnerForge": (KEMPNERFORGE,),
    "MaxText": (MAXTEXT,),
}
"""Stacks as tables name them, without a version -> the one with GPT-2's blocks, and the one with others."""
VARIANTS: Mapping[str, Mapping[str, Stack]] = {
    "torchtitan": {"no compile": TORCHTITAN_EAGER, "loss not compiled": TORCHTITAN_2024, "async TP": TORCHTITAN_ASYNC},
    "Megatron-Bridge": {
        "CUDA graphs": MEGATRON_BRIDGE_GRAPHS,
        "alltoall": MEGATRON_BRIDGE_ALLTOALL,
        "token drop": NEMO,
    },
    "NeMo": {"unfused attention": NEMO_UNFUSED},
    "MaxText": {"bfloat16 weights": MAXTEXT_BFLOAT16},
}
"""Stacks as tables name them -> what their column `variant` can say, and the stack that then ran."""


def stack_on(name: str, platform: str) -> Stack:
    """The stack of a name on a platform, as `Chip.platform` names it. On GPUs XLA fuses less than on TPUs."""
    return MESHMARK_ON_GPUS if name == MESHMARK.name and platform in ("cuda", "gpu") else STACKS[name]
