"""Memory of a device under a stack: what it keeps of each parameter, activations of its microbatches, and logits."""

import math
from dataclasses import dataclass, replace

from benchmarks.simulate.folding import further_of
from benchmarks.simulate.memory_traffic import gathered_elements
from benchmarks.simulate.published import PublishedRun
from benchmarks.simulate.stack import Memory, Precision, Stack
from benchmarks.simulate.stacks import MEGATRON
from benchmarks.simulate.step import first_stage_elements
from strategies.config import Remat
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES, Weight
from strategies.costs.predict import Cost
from strategies.model.expert_rows import rows_of

USED_BYTES = 2 + 2
"""Of a parameter: the weight and its gradient in two bytes each."""
UPDATED_BYTES = 4 + 4 + 4 + 4
"""Of a parameter that the device updates, in float32: weight, gradient and Adam's two moments. With `USED_BYTES`
that is 20 bytes (Smith et al. 2022, "Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B")."""
REPLICAS = "data", "context", "expert"
"""Axes that may share the update of a weight that none of them splits."""
HALF = 2
"""Bytes of an activation, of a weight and of a gradient in bfloat16."""


@dataclass(frozen=True)
class Held:
    """Memory of a device, by the rules of the stack, or, where it has none, as meshmark's own step needs it.

    Attributes:
        cost: the step.
        stack: the software.
        precision: of the layers' matmuls, if they are narrower than two bytes.
        offloads: whether what full recomputation keeps is in the memory of the host.
    """

    cost: Cost
    stack: Stack
    precision: Precision | None = None
    offloads: bool = False

    @property
    def total_bytes(self) -> float:
        """Memory of the device that needs the most.

        The first stage has most microbatches in flight, and the embedding; the last has the head. The second has fewer
        microbatches in flight, but experts in all layers, where the first layers of the model have none.
        """
        if self.stack == MEGATRON:
            return megatron_bytes(self.plan)
        if not self.stack.memory:
            return self.cost.needed_bytes
        last = self.plan.stages - 1
        return self.memory.fragmentation * max(self.stage_bytes(stage) for stage in {0, min(1, last), last})

    @property
    def plan(self) -> Plan:
        """The plan of the step."""
        return self.cost.plan

    @property
    def memory(self) -> Memory:
        """The rules of the stack."""
        assert self.stack.memory
        return self.stack.memory

    def fit(self, capacity: float, *, says_recomputation: bool) -> str:
        """Whether it fits into the memory of a device, or the least recomputation with which it does.

        Args:
            capacity: memory of a device in bytes.
            says_recomputation: whether it is known what the step recomputes. Otherwise that may be more.
        """
        least = needed = self.total_bytes
        if needed <= capacity:
            return "yes"
        if not says_recomputation:
            layers, full = self.plan.config.layers, self.with_full_recomputation()
            least = full.total_bytes
            if least <= capacity:
                fewest = math.ceil(layers * (needed - capacity) / (needed - least))
                return f"with {fewest} of {layers} layers recomputed"
            least = replace(full, offloads=True).total_bytes
            if least <= capacity:
                return "with layers recomputed from inputs in the memory of the host"
        # What the row may take at the least: where it says what is recomputed, that is what it needs.
        margin = self.stack.memory.margin if self.stack.memory else 0
        return "within the error" if least <= capacity * (1 + margin) else "no"

    def with_full_recomputation(self) -> "Held":
        """The same step, if all layers are recomputed."""
        plan = replace(self.plan, train=replace(self.plan.train, remat="full"))
        return replace(self, cost=replace(self.cost, plan=plan))

    def stage_bytes(self, stage: int) -> float:
        """Bytes in use on a stage at the begin of a backward pass.

        There are the activations of the microbatches in flight, logits or a layer that is computed again, and gradients
        of weights that are not yet added to their sums.
        """
        plan, share, is_last = self.plan, self.share_of(stage), stage == self.plan.stages - 1
        here = [(weight, self.elements(weight, share)) for weight in plan.weights if self.is_on(stage, weight)]
        held = sum(elements * self.bytes_of(weight) for weight, elements in here)
        layer = sum(elements for weight, elements in here if weight.spec.is_stacked) / plan.layers
        logits = self.logits_bytes if is_last else 0
        again = 0 if plan.train.remat == "none" else self.kept_bytes("none", share)
        kept = plan.layers * self.kept_bytes(plan.train.remat, share)
        fresh = self.memory.fresh_bytes * (layer + is_last * self.table)
        return held + self.gathered_bytes + in_flight(plan, stage) * kept + max(logits, again) + fresh

    def is_on(self, stage: int, weight: Weight) -> bool:
        """Whether a stage has a weight: layers, the embedding on the first, the head or its tied table on the last."""
        first, last = stage == 0, stage == self.plan.stages - 1
        of_head = weight.spec.name.startswith("head.") or (self.plan.config.tied and "vocab" in weight.spec.dims)
        return weight.spec.is_stacked or (last and of_head) or (first and weight.spec.name.startswith("embedding."))

    def share_of(self, stage: int) -> float:
        """Part of the layers of a stage that have experts. If few layers have none, they are the first of the model."""
        layers = self.plan.config.layers
        expert_share = further_of(self.plan.config).expert_share
        dense, here = round((1 - expert_share) * layers), layers / self.plan.stages
        if self.plan.stages == 1 or dense >= here:
            return expert_share
        return 1 - dense / here if stage == 0 else 1.0

    def elements(self, weight: Weight, expert_share: float) -> float:
        """Elements of a weight on a device of a stage. Tables are not split over stages, as `Plan` splits them."""
        if "vocab" in weight.spec.dims:
            return weight.elements * self.plan.stages
        return weight.elements * (expert_share if "expert_mlp" in weight.spec.dims else 1)

    def bytes_of(self, weight: Weight) -> float:
        """Bytes of an element of a weight, its gradient and its optimizer, which replicas may share."""
        plan, memory, sharing = self.plan, self.memory, ()
        if any(axis.updates for axis in plan.axes):
            sharing = REPLICAS
        elif self.stack.recipe.optimizer_sharded == "zero3":
            sharing = ("context",)
        parts = math.prod(plan.size(axis) for axis in sharing if axis not in weight.axes)
        unreduced = memory.unreduced_bytes and plan.shards > 1 and plan.train.microbatches > 1
        gradients = memory.unreduced_bytes * plan.shards if unreduced else memory.gradient_bytes
        return memory.used_bytes + gradients + memory.updated_bytes / parts

    @property
    def table(self) -> float:
        """Elements of the head's table on a device."""
        return self.plan.padded_vocab * self.plan.config.embed / self.plan.tensors

    @property
    def logits_bytes(self) -> float:
        """Logits of a microbatch, with the arrays of the loss and their gradients."""
        devices = 1 if self.stack.gathers_logits else self.plan.tensors
        return self.memory.logit_bytes * self.plan.share.tokens * self.plan.padded_vocab / devices

    @property
    def gathered_bytes(self) -> float:
        """Weights of two layers, and of tables, that are gathered at a time where they are sharded."""
        if not (layer := gathered_elements(self.plan)):
            return 0
        return BYTES[self.plan.train.dtype] * (2 * layer + self.stack.first_tables * self.table)

    def kept_bytes(self, remat: Remat, expert_share: float) -> float:
        """Activations of a layer for a microbatch, by what is recomputed.

        Inputs of norms, queries, keys, values, the output of attention, gate and up are in two bytes each. Operands of
        matmuls are in their precision: results of norms and of the MLP's activation function, and where that is narrow
        a copy of the output of attention. A fused attention keeps no scores to recompute.
        """
        share, config, further = self.plan.share, self.plan.config, further_of(self.plan.config)
        again = further.recomputed
        operand = self.precision.itemsize if self.precision else HALF
        stream, tokens = share.residual_tokens * config.embed, share.tokens
        if remat == "full":
            return 0 if self.offloads else HALF * stream
        latent = further.score_features / share.tensors
        features = latent * (1 if "mla_up_proj" in again else 4) or 2 * (share.head_features + share.key_features)
        rows = rows_of(share) * expert_share if config.experts else 0
        hidden = tokens * (share.shared_mlp if config.experts else share.mlp) + rows * share.expert_mlp
        if remat == "dots" and self.stack.selective == "every second matmul":
            # The input of the layer, queries, values, the output of attention, and gate.
            return HALF * (stream + tokens * (2 * share.head_features + share.key_features) + hidden)
        norms = 2 * (HALF + (0 if "layernorm" in again else operand)) * stream
        attention = HALF * tokens * features + (operand * tokens * share.head_features if self.precision else 0)
        mlp = (HALF * (1 if config.block == "gpt2" else 2) + (0 if "moe_act" in again else operand)) * hidden
        # Rows of experts are of the tokens that a device has between matmuls.
        sorted_rows = operand * rows * config.embed * share.residual_tokens / tokens
        router = 3 * 4 * share.residual_tokens * (config.experts or 0)
        return norms + attention + mlp + sorted_rows + router


def held_of(run: PublishedRun) -> Held:
    """What a device of a run holds."""
    return Held(run.cost, run.stack, run.precision, run.offloads)


def in_flight(plan: Plan, stage: int = 0) -> float:
    """Microbatches in flight on one of p stages: p for the first, and with m chunks (p - 1) / m more."""
    if not plan.staged:
        return 1
    stages, chunks = plan.schedule.stages, plan.schedule.chunks
    parts = stages - stage if chunks == 1 else stages * (chunks - 1) + 2 * (stages - 1 - stage) + 1
    return min(plan.train.microbatches, parts / chunks)


def megatron_bytes(plan: Plan) -> float:
    """Memory of a device of the first stage, which has the token table and most microbatches in flight.

    What CUDA, NCCL and the allocator keep comes on top.
    """
    updated_bytes = UPDATED_BYTES * plan.updated / plan.elements
    return first_stage_elements(plan) * (USED_BYTES + updated_bytes) + activation_bytes(plan)


def activation_bytes(plan: Plan) -> float:
    """Activations on the first stage (Korthikanti et al. 2022, equations 1, 2, 4 and 5; the head's in section 4.3).

    Full recomputation keeps the input of each layer, 2 s b h. Besides there is one layer whole, or else the logits.
    """
    tensors, config = plan.tensors, plan.config
    stream = plan.share.tokens * config.embed
    scores = 5 * config.heads * config.sequence / config.embed
    spread = tensors if plan.sequence_parallel else 1
    outside, inside = stream * 10 / spread, stream * (24 + scores) / tensors
    kept = {"none": outside + inside, "dots": outside + stream * 24 / tensors, "full": 2 * stream / spread}
    again = outside + inside if plan.train.remat == "full" else 0
    logits = 0 if plan.staged else 4 * plan.share.tokens * plan.padded_vocab / tensors
    return in_flight(plan) * plan.layers * kept[plan.train.remat] + max(again, logits)
