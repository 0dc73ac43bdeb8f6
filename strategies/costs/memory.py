"""What a device holds: the arguments of a step exactly, and what its temporaries are made of.

The activations are those that gpt.py keeps of a layer for its backward pass, in the way of Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", equations 1 to 6: without dropout, attention scores are
never kept, the statistics of norms and softmax are, and so is what a norm computes in float32.
"""

from collections.abc import Mapping
from functools import cache

import jax
from jax import lax

from strategies.costs.plan import BYTES, Plan
from strategies.training.compression import padded


def arguments(plan: Plan) -> Mapping[str, int]:
    """Bytes of what a step takes: parameters, AdamW's two moments of each and its count, and tokens.

    Compression keeps besides what its codes were short of.
    """
    sequences, parts = plan.train.batch_size // plan.size(*plan.layout.batch), plan.updates
    short = 0
    if plan.train.compression != "none":
        devices = plan.size(*plan.layout.replicas)
        short = padded(plan.elements, devices) // devices * (devices + 1)
    return {
        "parameters": 4 * plan.elements,
        "optimizer": 2 * 4 * plan.elements // parts + 4,
        "errors": 4 * short,
        "batch": 4 * sequences * (plan.config.sequence + 1),
    }


def layer_bytes(plan: Plan) -> int:
    """Kept of one layer and one microbatch for the backward pass, by policy.

    For n tokens, s of them in the residual stream of this device, on t devices of the tensor axis, c bytes a number:

    full: x, c s D
    dots: besides, the sum after attention c s D, means and deviations of the norms 16 s, queries, keys, values and what
        attention mixes of them 4 c n D/t (once more if it comes from other devices, c n D), the sums of exponentials
        4 n H/t, and what goes into GELU c n F/t
    none: besides, what either norm makes before and behind its scale 16 s D (but what a matmul takes, c s D, where that
        is the next to come), the scales 8 D, and more arrays of the size of what goes into GELU: three, and those of
        its tanh. What goes into GELU and x after attention are sums with a bias, and kept in float32, in which biases
        are added
    """
    config, train, tensors = plan.config, plan.train, plan.tensors
    number, own = BYTES[train.dtype], plan.own_residual // train.microbatches
    tokens, hidden = (plan.tokens * width // train.microbatches // tensors for width in (1, config.mlp_dim))
    kept = number * own
    if train.remat != "full":
        statistics = 4 * 4 * own // config.embed + 4 * tokens * config.heads
        kept += number * (own + (5 if plan.ulysses else 4) * tokens * config.embed + hidden) + statistics
    if train.remat == "none":
        # Behind a cast comes what a tensor axis makes of it: that is kept, and not what was cast.
        taken = number if plan.over(plan.axes_of("heads")) and not plan.sequence_parallel else 4
        kept += 2 * (4 + taken) * own + 2 * 4 * config.embed + (4 - number) * (own + hidden)
        kept += (3 + tanh_arrays()) * number * hidden
    return kept


@cache
def tanh_arrays() -> int:
    """Arrays that autodiff keeps of a tanh y: with JAX 0.10, y and 1 - y; with JAX 0.12, 1 - y^2 alone."""
    shape = jax.ShapeDtypeStruct((1,), "float32")
    return len(jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(lax.tanh, x)[1], shape)))


def temporaries(plan: Plan) -> Mapping[str, int]:
    """Bytes of what a step holds at its peak besides its arguments, while it goes back through a layer or the head.

    As XLA's CPU backend plans it, in float32. Others order the work otherwise, and fuse attention; what they must hold
    is `weights`, `gradients` and `activations`. Of what compression takes nothing is known.

    weights: whole, where what is gathered stays
    gradients: of all weights; where they are accumulated, those of one microbatch besides
    activations: what all layers keep, of all microbatches that are in flight
    stages: of a pipeline, see `stage_bytes`
    working: on one layer, or on the head, if that takes more
    """
    train, shards = plan.train, plan.shards
    stays = shards > 1 and (train.gather == "step" or not train.regather)
    gradients = plan.elements * plan.gathered
    if train.microbatches > 1 and not plan.staged:
        gradients += gradients // (plan.updates if plan.layout.scatters_each else 1)
    return {
        "weights": shards * sum(BYTES[plan.dtype(weight)] * weight.elements for weight in plan.weights) if stays else 0,
        "gradients": 4 * gradients,
        "activations": plan.ticks.depths.kept * plan.layers * layer_bytes(plan) // plan.schedule.chunks,
        "stages": stage_bytes(plan) if plan.staged else 0,
        "working": max(layer_work_bytes(plan), head_work_bytes(plan)),
    }


def stage_bytes(plan: Plan) -> int:
    """What a pipeline holds besides: what waits on a stage, but for what layers keep.

    Inputs and gradients that have arrived, with a slot that nobody reads, and what is sent; what backward passes put
    off (zb-h1: of a layer 7 n D + n F, of which a tensor axis splits 3 n D + n F; with `remat="full"` 12 n D + 3 n F,
    and 4 n D + 3 n F).
    """
    config, train, depths = plan.config, plan.train, plan.ticks.depths
    number, tokens = BYTES[train.dtype], plan.tokens // train.microbatches
    arrived = (depths.arrived + 2) * number * plan.own_residual // train.microbatches
    whole, split, hidden = (8, 4, 3) if train.remat == "full" else (4, 3, 1)
    width = whole * config.embed + (split * config.embed + hidden * config.mlp_dim) // plan.tensors
    return arrived + depths.put_off * plan.layers * number * tokens * width


def layer_work_bytes(plan: Plan) -> int:
    """To go back through one layer, in float32: its weights, whole, and arrays of n tokens.

    Ten of n D: what norms make, before and behind their scales, queries twice, keys, values, what attention mixed, and
    the gradient. A tensor axis splits six of them, or four without sequence parallelism. Three of n F/t around GELU,
    and n T H/t of scores. With `remat="full"` also what goes into GELU, and the sum after attention.
    """
    config, tensors, tokens = plan.config, plan.tensors, plan.tokens // plan.train.microbatches
    # A loop of one layer is none, and takes no layer's weights out of all.
    weights = block_elements(plan) * plan.shards // plan.layers if plan.layers > 1 else 0
    again = 1 if plan.train.remat == "full" else 0
    split = 6 if plan.sequence_parallel else 4
    parts = (split + again) * config.embed + (3 + again) * config.mlp_dim + config.sequence * config.heads
    return 4 * (weights + tokens * ((10 - split) * config.embed + parts // tensors))


def head_work_bytes(plan: Plan) -> int:
    """To go back through the head, in float32.

    Of the tokens whose logits there are at once these, their exponentials and gradients, V/v each on v devices that
    split the vocabulary; three of n D; and a table that is gathered, with its gradients.
    """
    tokens, rows = plan.tokens // plan.train.microbatches, plan.rows // plan.size(*plan.vocab_axes)
    logits = 3 * plan.logits_tokens * rows
    gathered = plan.shards > 1 and plan.train.gather == "layer"
    table = 2 * plan.rows * plan.config.embed if gathered else 0
    return 4 * (logits + 3 * tokens * plan.config.embed + table)


def block_elements(plan: Plan) -> int:
    """Parameters that one device holds of its layers."""
    return sum(weight.elements for weight in plan.weights if weight.of_blocks)
