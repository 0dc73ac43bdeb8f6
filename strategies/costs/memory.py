"""Bytes that one device holds: the arguments of a step exactly, and an estimate of its temporaries.

parts.py has the residuals and working arrays of the model's parts.
"""

from collections import Counter
from collections.abc import Mapping

from strategies.core.compression import padded
from strategies.core.gradients import copied_elements
from strategies.core.matrices import Muon, matrix_dtype, moments_of
from strategies.core.newton_schulz import Matrices
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES, Weight
from strategies.costs import layer
from strategies.model.gpt import is_ordered
from strategies.model.layers import layers_at_once


def arguments(plan: Plan) -> Mapping[str, int]:
    """Bytes of a step's arguments on one device: parameters, the optimizer's moments and count, and tokens.

    With compression there are also the quantisation errors, for error feedback (core/compression.py), and in float16
    the loss scale and the count of good steps (core/optimizer.py). Master weights count as optimizer state, as in
    Rajbhandari et al. 2020, "ZeRO", section 3.1.
    """
    sequences = plan.train.batch_size // plan.size(*plan.placement.batch)
    error_elements = 0
    if plan.train.compression != "none":
        devices = plan.size(*plan.placement.replicas)
        error_elements = padded(plan.elements, devices) // devices * (devices + 1)
    scalars = 3 if plan.train.dtype == "float16" else 1
    masters = 0 if plan.train.master == "none" else 4

    def copied(weight: Weight) -> int:
        """Bytes of its moments, if trained, and of its master."""
        moments = sum(BYTES[dtype] for dtype in moments_of(weight.spec, plan.train).values())
        return (masters + moments) * weight.updated_elements

    return {
        "parameters": plan.parameter_bytes,
        "optimizer": sum(map(copied, plan.weights.values())) + 4 * scalars,
        "errors": 4 * error_elements,
        "batch": 4 * sequences * (plan.config.sequence + 1),
    }


def temporaries(plan: Plan) -> Mapping[str, int]:
    """Bytes of a step's temporaries on one device, at the peak: in the backward pass of a layer or the head, or later.

    XLA's GPU backend is within 15% of this (docs/experiments/2026-11-26-gpu-memory.md). TPUs and CPUs differ more, but
    must hold `weights`, `gradients`, `activations` and `stages`. Temporaries of compression are not modelled, nor the
    effect of `halves`: as compiled, from 13% less to 16% more (docs/experiments/2026-11-26-expert-overlap.md).

        weights: gathered weights that are kept for the backward pass; cast weights of stages, or without a loop
        gradients: of all weights; with accumulation also of one microbatch
        activations: residuals of all layers, for all microbatches in flight
        stages: buffers of a pipeline stage (`stage_bytes`)
        working: working arrays of one layer, of the head, or of the gradient reduction, whichever needs the most
    """
    train, shards = plan.train, plan.shards
    keeps_gathered = shards > 1 and (train.gather == "step" or not train.regather)
    gathered_bytes = shards * sum(BYTES[plan.dtype(weight)] * weight.elements for weight in plan.weights.values())
    cast_bytes = ahead_bytes(plan) if plan.casts_ahead or not plan.loops_layers else 0
    held = {
        "weights": gathered_bytes if keeps_gathered else cast_bytes,
        "gradients": gradient_bytes(plan),
        "activations": sum(map(activation_bytes, (plan,) if plan.staged else plan.stacks)) + mtp_input_bytes(plan),
        "stages": stage_bytes(plan) if plan.staged else 0,
    }
    early = microbatch_gradient_bytes(plan) if fuses_gradients(plan) else 0
    most = max(layer_work_bytes(plan), head_work_bytes(plan) - early, reduction_bytes(plan) - sum(held.values()))
    most = max(most, matrix_bytes(plan) - held["activations"])
    for stack in (plan.lead, plan.mtp) if plan.staged else ():
        if stack:  # they run forward and backward while the stages hold their residuals
            gradients = 4 * stack.layers * whole_layer(stack)
            most = max(most, layer_work_bytes(stack) + activation_bytes(stack) + gradients)
    if plan.lead and not plan.staged:  # they run backward when nothing is left of the other layers
        most = max(most, layer_work_bytes(plan.lead) - activation_bytes(plan))
    return {**held, "working": most}


def matrix_bytes(plan: Plan) -> int:
    """Bytes of Muon's working arrays: the directions of all matrices, and while one kind of matrices is
    orthogonalised its parts, three arrays of whole matrices, and two Gram matrices.
    """
    size, groups = BYTES[matrix_dtype(plan.train)], Muon(plan).groups

    def working(group: Matrices) -> int:
        count, rows, columns = group.orthogonalised_shape
        return size * count * (3 * rows * columns + 2 * rows**2)

    parts = 4 * sum(group.count * group.part for group in groups)
    return parts + max(map(working, groups), default=0)


def ahead_bytes(plan: Plan) -> int:
    """Bytes of all layers' weights that are cast before any layer runs, as they are without a loop."""
    used = [(each, BYTES[plan.dtype(each)] * each.elements) for each in plan.weights.values() if each.spec.is_stacked]
    return sum(size for each, size in used if size != plan.held_bytes(each))


def activation_bytes(plan: Plan) -> int:
    """Bytes of the residuals of one kind of layers, for all microbatches in flight."""
    return plan.ticks.depths.kept * plan.layers * layer.kept_bytes(plan.share) // plan.schedule.chunks


def mtp_input_bytes(plan: Plan) -> int:
    """Bytes of the inputs of the MTP block. With full recomputation `activation_bytes` has one, as the block's own."""
    inputs = (2 if plan.train.remat != "full" else 1) * (plan.head_uses - 1)
    return 0 if plan.staged else inputs * plan.share.itemsize * plan.share.residual_tokens * plan.config.embed


def reduction_bytes(plan: Plan) -> int:
    """Bytes of gradients and their sums over devices, after the backward pass; 0 if summed in place.

    Some compilers put results of all-reduces in new memory, others in place of their operands. Buckets (`bucket_bytes`)
    need less at once, which is not counted. Sums over different axes, and sums of replicated KV heads, run one by one
    and reuse memory: the largest counts.
    """
    copies = 0 if plan.train.reduce == "layer" else copy_sum_bytes(plan)
    return max(replica_sum_bytes(plan), plan.parameter_bytes + copies if copies else 0)


def copy_sum_bytes(plan: Plan) -> int:
    """Bytes of gathered gradients of replicated KV heads, and of their float32 sum (core/gradients.py)."""
    return (BYTES[plan.train.reduce_dtype] * plan.key_copies + 4) * copied_elements(plan)


def replica_sum_bytes(plan: Plan) -> int:
    """`reduction_bytes` of the sums over replicas."""
    if plan.size(*plan.placement.replicas) == 1 or plan.train.reduce == "layer" or plan.backend.sums_in_place:
        return 0
    together = Counter[Axes]()
    for weight in plan.weights.values():
        together[weight.summed] += weight.elements if weight.summed else 0
    return plan.parameter_bytes + 4 * max(together.values())


def gradient_bytes(plan: Plan) -> int:
    """Bytes of one microbatch's gradients; with accumulation also of the float32 sums over microbatches."""
    train, gradients = plan.train, microbatch_gradient_bytes(plan)
    if train.microbatches > 1 and not plan.staged:
        scattered = plan.placement.reduce_scatter_per_microbatch
        gradients += 4 * sum(
            weight.updated_elements if scattered else weight.elements * plan.gathered_of(weight)
            for weight in plan.weights.values()
        )
    return gradients


def microbatch_gradient_bytes(plan: Plan) -> int:
    """Bytes of one microbatch's gradients. They have the parameters' dtype; sums over devices are float32.

    Weights gathered for a whole step are cast before the gather, and so are their gradients, except on stages, which
    accumulate them. Where elementwise operations are fused, weights outside layers have gradients in the compute dtype,
    which AdamW casts on reading. The embedding's gradient comes last and reuses memory of the layers; it is counted to
    cover the gaps of the compiler's placement.
    """

    def held(weight: Weight) -> int:
        fused = fuses_gradients(plan) and not weight.spec.is_stacked
        cast = fused or (plan.gathered_of(weight) > 1 and not plan.staged)
        return BYTES[plan.dtype(weight)] * weight.elements if cast else plan.held_bytes(weight)

    gradients = sum(held(weight) * plan.gathered_of(weight) for weight in plan.weights.values())
    if plan.train.reduce == "layer":  # a sharded update has whole gradients of embedding and head only
        gradients -= sum(held(weight) for weight in plan.weights.values() if weight.spec.is_stacked)
        gradients += 4 * sum(weight.updated_elements for weight in plan.weights.values() if weight.spec.is_stacked)
    return gradients


def fuses_gradients(plan: Plan) -> bool:
    """Whether gradients are in memory only while computed. Stages accumulate them from the first microbatch."""
    return plan.backend.fuses_elementwise and not plan.staged


def stage_bytes(plan: Plan) -> int:
    """Bytes of a pipeline stage's buffers, without residuals.

    They hold inputs and gradients that have arrived, one slot to send (with pairs two) and one that no stage reads; if
    backward passes are split also what their second halves need.
    """
    train, depths = plan.train, plan.ticks.depths
    arrived = (depths.arrived + 2 + plan.schedule.pairs) * plan.own_residual // train.microbatches
    each = layer.waiting_elements(plan.share) if plan.schedule.splits_backward else 0
    return plan.share.itemsize * (arrived + depths.kept * plan.layers * each // plan.schedule.chunks)


def layer_work_bytes(plan: Plan) -> int:
    """Bytes to run one layer's backward pass: its whole weights and its working arrays.

    With prefetch also the previous layer's weights, and the following layer's gradients, in float32 for their sum;
    where elementwise operations are fused, its own gradients too. Sums that run one layer late
    (`Plan.overlap_grad_reduction`) only add the following layer's gradients, in the compute dtype. Replicated KV heads
    are summed here if `reduce="layer"`. Every other layer of an iteration adds its weights, and so does the forward
    pass of a pair, in the compute dtype; their working arrays are not counted. A tensor axis that gathers tokens along
    the outermost dim transposes them: three more arrays, as compiled for GPUs.
    """
    share, backend = plan.share, plan.backend
    size, whole = working_itemsize(plan), 0 if reads_in_place(plan) else whole_layer(plan)
    held = size * whole
    if plan.train.prefetch == "on":
        held += (size + 4 + size * backend.fuses_elementwise) * whole
    transposes = share.sequence_parallel and backend.gathers_outermost_only
    elements = layer.working_elements(share) + 3 * transposes * share.tokens * plan.config.embed
    late = share.itemsize * whole_layer(plan) if plan.overlap_grad_reduction else 0
    others = (further_layers(plan) * size + plan.pairs_in_one_loop * share.itemsize) * whole_layer(plan)
    copies = copy_sum_bytes(plan) // plan.layers if plan.train.reduce == "layer" else 0
    return held + size * elements + late + others + copies


def working_itemsize(plan: Plan) -> int:
    """Bytes per element of working arrays: float32, unless elementwise operations are fused."""
    return plan.share.itemsize if plan.backend.fuses_elementwise else 4


def further_layers(plan: Plan) -> int:
    """Layers per iteration of the backward loop, without the one that runs (`unroll`)."""
    if plan.layer_slots > plan.config.blocks or not plan.loops_layers:
        return 0  # stages with empty slots do not unroll (layer_backward.py)
    outside = 2 if plan.train.prefetch == "on" else int(plan.overlap_grad_reduction)
    return layers_at_once(plan.layers - outside, plan.train.layers_in_loop) - 1 if plan.layers > outside else 0


def reads_in_place(plan: Plan) -> bool:
    """Whether a single-iteration loop avoids copying a layer's weights out of the stack."""
    if plan.staged:
        return plan.layers == 1
    gathers = plan.shards > 1 and plan.train.gather == "layer"
    return layers_at_once(plan.layers, plan.train.layers_in_loop) == plan.layers and not gathers


def head_work_bytes(plan: Plan) -> int:
    """Bytes to run the head's backward pass: its working arrays, a gathered table and its gradient.

    With prefetch also the last layer's weights, and the previous layer's if their gather does not have to wait for the
    head. Working arrays are logits, their exponentials and gradients, for the tokens whose logits exist at once and
    this device's rows of the table; and three arrays of tokens x D.

    Where elementwise operations are fused, they are logits, their gradients, and the table in the compute dtype. With
    `logits_bytes` the table and its gradient are in float32, each twice, and the table twice in the compute dtype.
    """
    tokens, embed = plan.tokens // plan.train.microbatches, plan.config.embed
    local_vocab = plan.padded_vocab // plan.size(*plan.vocab_axes)
    gathered = plan.shards > 1 and plan.train.gather == "layer"
    logits, vocab = plan.logits_tokens * local_vocab, plan.padded_vocab if gathered else local_vocab
    layers = (1 if is_ordered(plan.train, plan.layers) else 2) if plan.train.prefetch == "on" else 0
    kept = (plan.head_uses - 1) * logits  # of one head while the other runs
    arrays, tables = 3 * (logits + tokens * embed) + kept, 2 * gathered
    if plan.backend.fuses_elementwise:
        arrays, tables = 2 * logits + kept, 10 if plan.logits_again else 1 + gathered
    return working_itemsize(plan) * (layers * whole_layer(plan) + tables * vocab * embed + arrays)


def whole_layer(plan: Plan) -> int:
    """Parameters of one layer as a device uses them, gathered over the axes of `Placement.shards`."""
    return block_elements(plan) * plan.shards // plan.layers


def block_elements(plan: Plan) -> int:
    """Parameters of this device's layers."""
    return sum(weight.elements for weight in plan.weights.values() if weight.spec.is_stacked)
