"""What a device holds: the arguments of a step exactly, and what its temporaries are made of.

The activations are those that gpt.py keeps of a layer for its backward pass, in the way of Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", equations 1 to 6: without dropout, attention scores are
never kept, the statistics of norms and softmax are, and so is what a norm computes in float32.
"""

from collections.abc import Mapping

from strategies.plan import BYTES, Plan
from strategies.ticks import Depths, Ticks


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
    stages: of a pipeline, see `stage_bytes`
    working: on one layer, twice where it is in the conditional of an empty place; or on the head, if that takes more
    """
    accumulated = plan.train.microbatches > 1 and not plan.staged
    return {
        "gradients": 4 * plan.elements * (2 if accumulated else 1),
        "activations": slots(plan).kept * plan.layers * layer_bytes(plan) // plan.schedule.chunks,
        "stages": stage_bytes(plan) if plan.staged else 0,
        "working": max(layer_work_bytes(plan) * (2 if plan.uneven else 1), head_work_bytes(plan)),
    }


def slots(plan: Plan) -> Depths:
    """Of what waits on a stage; without stages, one microbatch is kept at a time."""
    return Ticks.of(plan.schedule).depths if plan.staged else Depths(x=0, dy=0, kept=1, put_off=0)


def stage_bytes(plan: Plan) -> int:
    """What a pipeline holds besides, that goes through a chunk of a stage at a time.

    Inputs and gradients that have arrived; what backward passes put off (zb-h1: of a layer 7 n D + n F, of which a
    tensor axis splits 3 n D + n F; with `remat="full"` 12 n D + 3 n F, and 4 n D + 3 n F); all that is kept or put off
    once more, for XLA's CPU backend copies what a conditional hands on; and of the chunk at work its gradients by one
    microbatch and, taken out from among others, what that has kept.
    """
    config, train, depths, chunks = plan.config, plan.train, slots(plan), plan.schedule.chunks
    number, tokens = BYTES[train.dtype], plan.tokens // train.microbatches
    arrived = (depths.x + depths.dy + 2) * number * plan.own_residual // train.microbatches
    whole, split, hidden = (8, 4, 3) if train.remat == "full" else (4, 3, 1)
    width = whole * config.embed + (split * config.embed + hidden * config.mlp_dim) // plan.size("tensor")
    put_off = depths.put_off * plan.layers * number * tokens * width
    kept = plan.layers * layer_bytes(plan) // chunks * (depths.kept + (1 if depths.kept > 1 else 0))
    return arrived + 2 * put_off + kept + 4 * block_elements(plan) // chunks


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


def head_work_bytes(plan: Plan) -> int:
    """To go back through the head, in float32.

    Of n tokens logits, their exponentials and gradients, n V/v each on v devices that split the vocabulary, and where
    they are computed again once more; three of n D; and a table that is gathered, with its gradients.
    """
    tokens = plan.tokens // plan.train.microbatches
    logits = 4 if plan.logits_again else 3
    table = 2 * plan.rows * plan.config.embed if plan.size(*plan.shards) > 1 else 0
    return 4 * (tokens * (logits * plan.rows // plan.size(*plan.vocab_axes) + 3 * plan.config.embed) + table)


def block_elements(plan: Plan) -> int:
    """Parameters that one device holds of its layers."""
    return sum(weight.elements for weight in plan.weights if weight.of_blocks)
