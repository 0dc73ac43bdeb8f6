"""The stacks of Megatron-LM and what is built on it. They are read from code, but for the launches of `MEGATRON`."""

from dataclasses import replace

from benchmarks.simulate.stack import NONE, SORTED, ForwardBackward, KernelCosts, Memory, Recipe, Stack

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
        # About 25 and 45 kernels. Python launches those of the forward pass, with modules and the states of random
        # numbers, and C++ those of the backward pass. What the host needs for both was chosen with a view to 360 runs
        # on one host (docs/experiments/2026-11-26-published-recipes.md). Of other stacks only mixtures wait for it.
        launches=ForwardBackward(60, 24),
    ),
)
MEGATRON_CORE = Stack(
    # As of 2025, with TransformerEngine: cuDNN's attention, a kernel each for RMSNorm, rotary positions, SwiGLU and
    # loss, and Adam of shards. Bytes are what such kernels read and write. Sums of gradients overlap only on request.
    name="Megatron-Core",
    # core/tensor_parallel/layers.py; TransformerEngine's context_parallel.py
    waits={"input gradients": "weight gradient", "keys and values": "layer"},
    repeats="all",
    embedding_and_head="first and last",
    outermost=("pipeline",),  # core/parallel_state.py, order "tp-cp-ep-dp-pp"
    reduce_dtype="float32",  # accumulate_allreduce_grads_in_fp32, which training/arguments.py sets with --bf16
    # --use-distributed-optimizer and --sequence-parallel are in its examples; recomputation has to be asked for.
    recipe=Recipe("zero1", sequence_parallel=True),
    meshes=(("data", "pipeline", "context", "tensor"), ("fsdp", "context", "tensor")),  # or custom_fsdp, without stages
    # dist_optimizer.md: 6 + 12/d bytes a parameter. The loss is computed in place, in float32 (cross_entropy.py).
    # Without gradient_accumulation_fusion matmuls write gradients of weights in bfloat16 first.
    memory=Memory(2, 4, 4 + 4 + 4, 4, fresh_bytes=2, error=0.05),
    kernels=KernelCosts(
        score_bytes=None,
        residual_bytes=ForwardBackward(2 * 4 + 2 * 6 + 5, 2 * 6 + 2 * 6 + 5),  # norms, sums, rotary positions
        mlp_bytes=ForwardBackward(6, 10),  # gate and up read, their product written; gradients
        logit_bytes=24,
        optimizer_bytes=30 + 4 + 8 + 4,  # Adam with weights in two bytes, norm, clipping, zeros for the next step
        launches=ForwardBackward(14, 28),
        row_bytes=ForwardBackward(
            4 * 4, 4 * 4
        ),  # by expert, by device, and both back (transformer/moe/token_dispatcher.py)
        # TransformerEngine's GroupedLinear calls cuBLAS for each expert; one call casts the operands of all.
        expert_launches=ForwardBackward(2, 4),
        # TEGroupedMLP._apply_bias: for each expert a product of bias and weights, and a sum; then all in one array, and
        # cast. Most of it is in float32.
        bias_bytes=ForwardBackward(4 + 10 + 8 + 6, 6 + 6 + 12 + 12),
        bias_launches=ForwardBackward(2, 5),
    ),
)
MEGATRON_BRIDGE = replace(
    # Its recipes set overlap_grad_reduce, overlap_param_gather, tp_comm_overlap, overlap_p2p_comm and
    # overlap_moe_expert_parallel_comm.
    MEGATRON_CORE,
    name="Megatron-Bridge",
    waits={
        **MEGATRON_CORE.waits,
        **dict.fromkeys(("gathers", "gradients", "updated weights", "tensor", "sends", "tokens"), "layer"),
    },
    deduplicates=True,  # moe_flex_dispatcher_backend: DeepEP, HybridEP
    reduce_dtype="bfloat16",  # grad_reduce_in_fp32 = False in scripts/performance/configs
    # grad_reduce_in_fp32=False; gradient_accumulation_fusion; TransformerEngine's loss in place, in bfloat16
    memory=Memory(2, 2, 4 + 4 + 4, 2 + 2),
    kernels=replace(MEGATRON_CORE.kernels, row_bytes=SORTED),
)
MEGATRON_BRIDGE_ALLTOALL = replace(
    # moe_token_dispatcher_type = "alltoall" sends a token once to each of its experts.
    MEGATRON_BRIDGE,
    name="Megatron-Bridge, alltoall",
    constants_of="Megatron-Bridge",
    deduplicates=False,
)
NEMO = replace(
    # Its performance scripts drop tokens (MegatronTokenDropCallback): Megatron-Core has this dispatcher alone for that.
    # They do not set overlap_moe_expert_parallel_comm.
    MEGATRON_BRIDGE_ALLTOALL,
    name="NeMo",
    waits={name: until for name, until in MEGATRON_BRIDGE.waits.items() if name != "tokens"},
)
NEMO_UNFUSED = replace(
    # TransformerEngine's UnfusedDotProductAttention, for latent attention on Blackwell: before cuDNN 9.11 heads of 192
    # and 128 features have no backward pass there (common/fused_attn/fused_attn.cpp). One kernel scales, masks and
    # computes the softmax, and one its gradient.
    NEMO,
    name="NeMo, unfused attention",
    kernels=replace(NEMO.kernels, score_bytes=ForwardBackward(2 + 2, 2 + 2 + 2)),
)
MEGATRON_BRIDGE_GRAPHS = replace(
    # From container 26.06 on for Qwen3 in MXFP8 on B200 to GB300 (pull requests 4249 and 4606): a CUDA graph of the
    # iteration, which the host launches once, matmuls of experts by CuTeDSL that activate and cast their results, and
    # moe_a2a_overlap.
    MEGATRON_BRIDGE,
    name="Megatron-Bridge, graphs",
    waits={**MEGATRON_BRIDGE.waits, "tokens of one chunk": "layer"},
    constants_of="Megatron-Bridge",
    kernels=replace(
        MEGATRON_BRIDGE.kernels,
        **dict.fromkeys(("launches", "router_launches", "expert_launches", "bias_launches"), NONE),
        fused_experts=True,
    ),
)
