"""Bytes that one device holds: the arguments of a step exactly, and an estimate of its temporaries.

What a layer keeps for its backward pass, each part of the model states beside its code (model/).
"""

from collections.abc import Mapping

from strategies.costs.plan import BYTES, Plan
from strategies.model.gpt import Block
from strategies.model.head import Head
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
        "activations": plan.ticks.depths.kept * plan.layers * Block.kept_bytes(plan.share) // plan.schedule.chunks,
        "stages": stage_bytes(plan) if plan.staged else 0,
        "working": max(layer_work_bytes(plan), head_work_bytes(plan)),
    }


def stage_bytes(plan: Plan) -> int:
    """Bytes of what waits on a pipeline stage, besides what layers keep.

    Inputs and gradients that have arrived, with one slot for what is sent and one that nobody reads; and with zb-h1
    what the second half of backward passes needs.
    """
    train, depths = plan.train, plan.ticks.depths
    arrived = (depths.arrived + 2) * plan.own_residual // train.microbatches
    deferred = depths.deferred * plan.layers * Block.deferred_elements(plan.share)
    return plan.share.itemsize * (arrived + deferred)


def layer_work_bytes(plan: Plan) -> int:
    """Bytes to run the backward pass of one layer, in float32: its weights in full, and its working arrays."""
    # A loop over one layer is no loop, and copies no layer's weights out of the stack.
    weights = block_elements(plan) * plan.shards // plan.layers if plan.layers > 1 else 0
    return 4 * (weights + Block.working_elements(plan.share))


def head_work_bytes(plan: Plan) -> int:
    """Bytes to run the backward pass of the head, in float32: its working arrays; a gathered table and its gradient."""
    tokens, rows = plan.tokens // plan.train.microbatches, plan.rows // plan.size(*plan.vocab_axes)
    gathered = plan.shards > 1 and plan.train.gather == "layer"
    table = 2 * plan.rows * plan.config.embed if gathered else 0
    return 4 * (table + Head.working_elements(plan.config, tokens, plan.logits_tokens, rows))


def block_elements(plan: Plan) -> int:
    """Parameters that one device holds of its layers."""
    return sum(weight.elements for weight in plan.weights if weight.of_blocks)
