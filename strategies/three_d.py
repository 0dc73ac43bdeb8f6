"""3D parallel: any product of data (or fsdp, or hsdp), pipeline, context, expert and tensor.

Data, pipeline and tensor together are "PTD-P" (Narayanan et al. 2021, section 3). Llama 3 was trained with fsdp and
context as well (Llama Team 2024, section 3.3.2). Each axis splits what the others leave whole:

    data, fsdp   the batch
    pipeline     layers, and the vocabulary
    context      the tokens of each sequence
    expert       the experts of each layer, and the batch once more
    tensor       heads and features of each layer, the vocabulary once more, and between matmuls the tokens once more
    fsdp         each weight that pipeline and tensor have split, along another dim where the weight has one

Each axis communicates as its own strategy does, for its shard of batch, layers, tokens and features:

    for each microbatch, and each layer of the stage:
    W[D_fsdp,F_tensor] -all_gather(fsdp)-> W[D,F_tensor], again backward
    dW[D,F_tensor] -reduce_scatter(fsdp)-> dW[D_fsdp,F_tensor]
    x[b,T_(context,tensor),D] -all_gather(tensor)-> x[b,T_context,D]; partial sums -reduce_scatter(tensor)-> back
    q, k, v[b,T_context,A_tensor] -all_to_all(context)-> q, k, v[b,T,A_(tensor,context)], and back; or a ring
    x[E,G_expert,C,D+1] -all_to_all(expert)-> x[E_expert,G,C,D+1] and back, as in expert.py
    for each microbatch:
    W[V_(pipeline,tensor),D_fsdp] -all_gather(fsdp)-> W[V_(pipeline,tensor),D], for the embedding, and for the head
    x[b,T_(context,tensor),D] -permute(pipeline)-> the next stage, dx to the previous one
    embeddings, and three numbers a token for the loss -all_reduce(pipeline x tensor)-> every device of these axes
    once a step, in `reduce_dtype`, each device for its fsdp shard:
    dW[D] -all_reduce(tensor)-> dW[D], weights that tensor does not split; the last norm -all_reduce(pipeline)-> as well
    dW[D_fsdp,F_tensor] -all_reduce(data x context)-> dW[D_fsdp,F_tensor], each weight

For P parameters on d x f x p x c x t devices, the formulas in those files hold with P / pt for P, B / df for B, T / c
for T and L / p for L, and in the attention of context.py with A / t for A. Over the n = dc replicas a device sends 2 P
/ fpt (n-1)/n elements a step.

Without pipeline stages there is no schedule: gradients are accumulated over microbatches, as in fsdp.py and tensor.py.

With `gather="layer"` fsdp gathers weights for every microbatch, and a pipeline has many microbatches. With
`gather="step"` it gathers all weights before the first microbatch, and scatters the accumulated gradients after the
last. With pipeline stages `context_attention` has no "ring": XLA's permutes wait for all devices of the mesh, but
stages run their layers at different times.
"""

from strategies import context, data, expert, fsdp, pipeline, tensor
from strategies.strategy import Strategy

AXES = data.REPLICAS, fsdp.AXIS, pipeline.AXIS, context.AXIS, expert.AXIS, tensor.AXIS
THREE_D = Strategy("three_d", AXES, usual_axes=("data", "pipeline", "tensor"))
