"""Memory of a device under Megatron-LM, by the formulas of its papers.

Legend: s sequence, b sequences of a microbatch, h embed, a heads, t devices of the tensor axis, p pipeline stages.
"""

from benchmarks.simulate.stack import MEGATRON, Stack
from strategies.core.plan import Plan
from strategies.costs.predict import Cost

USED_BYTES = 2 + 2
"""Of a parameter: the weight and its gradient in two bytes each."""
UPDATED_BYTES = 4 + 4 + 4 + 4
"""Of a parameter that the device updates, in float32: weight, gradient and Adam's two moments. With `USED_BYTES`
that is 20 bytes (Smith et al. 2022, "Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B")."""


def held_bytes(cost: Cost, stack: Stack) -> float:
    """Memory that a device needs: under Megatron-LM by its papers, and otherwise as meshmark's own step would."""
    return megatron_bytes(cost.plan) if stack == MEGATRON else cost.needed_bytes


def megatron_bytes(plan: Plan) -> float:
    """Memory of a device of the first stage, which has the token table and most microbatches in flight.

    What CUDA, NCCL and the allocator keep comes on top.
    """
    return first_stage_elements(plan) * (USED_BYTES + UPDATED_BYTES / plan.updates) + activation_bytes(plan)


def first_stage_elements(plan: Plan) -> float:
    """Parameters of a device of the first stage: its layers, and the tables of tokens and positions.

    Only the tensor axis splits the table of tokens. `Plan` splits it over the stages, too.
    """
    tables = (plan.padded_vocab / plan.tensors + plan.config.sequence) * plan.config.embed
    return sum(each.elements for each in plan.weights if each.spec.is_stacked) + tables


def activation_bytes(plan: Plan) -> float:
    """Activations on the first stage (Korthikanti et al. 2022, equations 1, 2, 4 and 5; the head's in section 4.3).

    Full recomputation keeps the input of each layer, 2 s b h. Besides there is one layer whole, or else the logits. The
    first stage of p has p microbatches in flight, and with m chunks (p - 1) / m more.
    """
    tensors, config = plan.tensors, plan.config
    stages, chunks = (plan.schedule.stages, plan.schedule.chunks) if plan.staged else (1, 1)
    stream = plan.share.tokens * config.embed
    scores = 5 * config.heads * config.sequence / config.embed
    spread = tensors if plan.sequence_parallel else 1
    outside, inside = stream * 10 / spread, stream * (24 + scores) / tensors
    kept = {"none": outside + inside, "dots": outside + stream * 24 / tensors, "full": 2 * stream / spread}
    in_flight = min(plan.train.microbatches, stages + (stages - 1) * (chunks > 1) / chunks)
    again = outside + inside if plan.train.remat == "full" else 0
    logits = 4 * plan.share.tokens * plan.padded_vocab / tensors if stages == 1 else 0
    return in_flight * plan.layers * kept[plan.train.remat] + max(again, logits)
