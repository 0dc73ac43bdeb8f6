"""Hybrid sharded data parallel: fsdp within a group of devices, data parallel between groups (Zhao et al. 2023,
"PyTorch FSDP", section 3.2.2).

Each group of devices along the fsdp axis holds one sharded copy of the weights and a shard of the batch. Within a group
it communicates like fsdp.py, for the group's shard of the batch. Between groups:

    dW[D_fsdp,F] -all_reduce(data)-> dW[D_fsdp,F], each weight, once a step, in `reduce_dtype`: after all
        microbatches, or with `reduce="layer"` each layer's in the backward loop (core/layer_reduction.py)

For P parameters and d groups of f devices, a device sends what fsdp sends over f devices within its group, and 2 P/f
(d-1)/d elements a step to the other groups, over the slower links.
"""

from strategies import data, fsdp
from strategies.strategy import Strategy

HSDP = Strategy("hsdp", (data.REPLICAS, fsdp.AXIS))
