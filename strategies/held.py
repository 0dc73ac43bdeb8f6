"""What a device holds: the arguments of a step exactly, and what its temporaries are made of.

The activations are those that gpt.py keeps of a layer for its backward pass, in the way of Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", equations 1 to 6: without dropout, attention scores are
never kept, the statistics of norms and softmax are, and so is what a norm computes in float32.
"""

from collections.abc import Mapping

from strategies.plan import BYTES, Plan


def arguments(plan: Plan) -> Mapping[str, int]:
    """Bytes of what a step takes: parameters, AdamW's two moments of each and its count, and tokens."""
    sequences = plan.tokens // plan.config.sequence
    return {
        "parameters": 4 * plan.elements,
        "optimizer": 2 * 4 * plan.elements + 4,
        "batch": 4 * sequences * (plan.config.sequence + 1),
    }


def layer_bytes(plan: Plan) -> int:
    """Kept of one layer and one microbatch for the backward pass, by policy.

    For n tokens, s of them in the residual stream of this device, on t devices of the tensor axis, c bytes a number:

    full: x, c s D
    dots: besides, the sum after attention c s D, means and deviations of the norms 16 s, queries, keys, values and what
        attention mixes of them 4 c n D/t, the sums of exponentials 4 n H/t, and what goes into GELU c n F/t
    none: besides, what either norm makes before and behind its scale 16 s D (but what a matmul takes, c s D, where that
        is the next to come), the scales 8 D, and five more arrays of the size of what goes into GELU
    """
    config, train, tensors = plan.config, plan.train, plan.size("tensor")
    number, own = BYTES[train.dtype], plan.own_residual // train.microbatches
    tokens, hidden = (plan.tokens * width // train.microbatches // tensors for width in (1, config.mlp_dim))
    kept = number * own
    if train.remat != "full":
        statistics = 4 * 4 * own // config.embed + 4 * tokens * config.heads
        kept += number * (own + 4 * tokens * config.embed + hidden) + statistics
    if train.remat == "none":
        taken = number if tensors > 1 and not plan.sequence_parallel else 4
        kept += 2 * (4 + taken) * own + 2 * 4 * config.embed + 5 * number * hidden
    return kept


def temporaries(plan: Plan) -> Mapping[str, int]:
    """Bytes of what a step holds at its peak besides its arguments, while it goes back through a layer or the head.

    gradients: of all weights; where they are accumulated, those of one microbatch besides
    activations: what all layers keep, of all microbatches that are in flight
    stages: of a pipeline, the gradients that enter and leave it, of all tokens
    working: on one layer or on the head, whichever takes more
    """
    staged, microbatches = bool(plan.axes_of("layers")), plan.train.microbatches
    return {
        "gradients": 4 * plan.elements * (2 if microbatches > 1 and not staged else 1),
        "activations": plan.layers * layer_bytes(plan) * (microbatches if staged else 1),
        "stages": 2 * 4 * plan.own_residual if staged else 0,
        "working": max(layer_work_bytes(plan) + (stage_work_bytes(plan) if staged else 0), head_work_bytes(plan)),
    }


def layer_work_bytes(plan: Plan) -> int:
    """To go back through one layer, in float32: its weights, whole, and arrays of n tokens.

    Ten of n D: what norms make, before and behind their scales, queries twice, keys, values, what attention mixed, and
    the gradient. A tensor axis splits six of them, or four without sequence parallelism. Three of n F/t around GELU,
    and n T H/t of scores. With `remat="full"` also what goes into GELU, and the sum after attention.
    """
    config, tensors, tokens = plan.config, plan.size("tensor"), plan.tokens // plan.train.microbatches
    # A loop of one layer is none, and takes no layer's weights out of all.
    weights = block_elements(plan) * plan.size(*plan.shards) // plan.layers if plan.layers > 1 else 0
    again = 1 if plan.train.remat == "full" else 0
    split = 6 if plan.sequence_parallel else 4
    parts = (split + again) * config.embed + (3 + again) * config.mlp_dim + config.sequence * config.heads
    return 4 * (weights + tokens * ((10 - split) * config.embed + parts // tensors))


def stage_work_bytes(plan: Plan) -> int:
    """To go back through a stage, besides: the gradients of its weights by one microbatch, and what that had kept."""
    taken_out = plan.layers * layer_bytes(plan) if plan.train.microbatches > 1 and plan.layers > 1 else 0
    return 4 * block_elements(plan) + taken_out


def head_work_bytes(plan: Plan) -> int:
    """To go back through the head, in float32, of which a pipeline has all microbatches at once.

    Of n tokens logits, their exponentials and gradients, n V/v each on v devices that split the vocabulary, and where
    they are computed again once more; three of n D; and a table that is gathered, with its gradients.
    """
    tokens = plan.tokens // (1 if plan.axes_of("layers") else plan.train.microbatches)
    logits = 4 if plan.logits_again else 3
    table = 2 * plan.rows * plan.config.embed if plan.size(*plan.shards) > 1 else 0
    return 4 * (tokens * (logits * plan.rows // plan.size(*plan.vocab_axes) + 3 * plan.config.embed) + table)


def block_elements(plan: Plan) -> int:
    """Parameters that one device holds of its layers."""
    return sum(weight.elements for weight in plan.weights if weight.of_blocks)
