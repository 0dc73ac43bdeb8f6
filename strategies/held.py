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

    gradients: of all weights; where microbatches follow one another, those of one besides, to be added
    activations: what all layers keep, of all microbatches that are in flight
    stages: of a pipeline, what one microbatch keeps, before it is put away; and the ends' gradients of all tokens
    working: on one layer, or on the logits, whichever takes more
    """
    train, staged = plan.train, bool(plan.axes_of("layers"))
    layers = plan.layers * layer_bytes(plan)
    looped = layers if plan.layers > 1 else 0
    return {
        "gradients": 4 * plan.elements * (2 if staged or train.microbatches > 1 else 1),
        "activations": layers * (train.microbatches if staged else 1),
        "stages": (looped if train.microbatches > 1 else 0) + 8 * plan.own_residual if staged else 0,
        "working": max(layer_work_bytes(plan), logits_work_bytes(plan)),
    }


def layer_work_bytes(plan: Plan) -> int:
    """To go back through one layer, in float32: its weights, whole, and arrays of n tokens.

    Ten of n D: what norms make, before and behind their scales, queries twice, keys, values, what attention mixed, and
    the gradient; a tensor axis splits six, and four are of all tokens. Three of n F/t around GELU, n T H/t of scores.
    """
    config, tensors, tokens = plan.config, plan.size("tensor"), plan.tokens // plan.train.microbatches
    weights = sum(weight.elements for weight in plan.weights if weight.of_blocks) * plan.size(*plan.shards)
    split = 6 * config.embed + 3 * config.mlp_dim + config.sequence * config.heads
    looped = weights // plan.layers if plan.layers > 1 else 0  # a loop of one layer is none, and takes no part out
    return 4 * (looped + tokens * (4 * config.embed + split // tensors))


def logits_work_bytes(plan: Plan) -> int:
    """To go back through the head, in float32: logits, their exponentials and their gradients."""
    return 4 * 3 * plan.tokens // plan.train.microbatches * plan.rows // plan.size(*plan.vocab_axes)
