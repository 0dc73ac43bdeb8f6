"""What describes a software stack: rules of what waits for what, and constants of its kernels (stacks.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from strategies.config import ReduceDtype

Collective = Literal[
    "gathers",
    "gradients",
    "updated weights",
    "input gradients",
    "halves",
    "keys and values",
    "tensor",
    "sends",
    "tokens",
    "tokens of one chunk",
]
"""Collectives that a stack may overlap with compute:

- gathers of sharded weights, and reduce-scatters of their gradients;
- all-reduces of gradients over replicas;
- reductions over the tensor axis of the gradients of a branch's inputs;
- all reductions over the tensor axis, with `TrainConfig.halves`;
- keys and values on their way around a ring of a context axis;
- gathers of weights after the update of a sharded optimizer, beside passes instead of before them;
- gathers and reduce-scatters over the tensor axis in chunks beside their matmuls, all but one chunk of each;
- sends to the next stage, with several chunks on a stage;
- dispatch and combine of tokens beside the pass of another microbatch, with several chunks on a stage;
- the same with one chunk on a stage, or without stages.
"""
Until = Literal["at once", "weight gradient", "layer"]
"""When the device waits for a collective: before anything else, after the matmul of the gradient of the branch's first
weight, or at the end of the layer."""
ZeroStage = Literal["none", "zero1", "zero2", "zero3"]
HALVES_SHARE = 0.16
"""Share of the reductions that `halves` overlaps with the other half of the batch. In schedules that XLA compiled for
H100, v5e and v5p (docs/experiments), 15% to 20% less is waited for."""


class Precision(NamedTuple):
    """What the operands of the layers' matmuls are made of, where that is narrower than the dtype of the step.

    Attributes:
        name: as tables name it.
        itemsize: bytes of an element, its share of the scaling factors included.
        rate: of a device's rates in `peaks.NARROW`, the one that multiplies it.
        cast_bytes: read and written to cast an element of an operand or of a gradient: it is read in two bytes, and
            written twice, as rows and as columns.
        gathered_bytes: of an element of weights, or of an input along the sequence, that devices gather.
        rescaled_bytes: read and written to scale an element of a gradient after its matmul.
    """

    name: str
    itemsize: float
    rate: Literal["fp8", "fp4"]
    cast_bytes: float
    gathered_bytes: float = 2
    rescaled_bytes: float = 0


PRECISIONS: Mapping[str, Precision] = {
    # A scale for a tensor is known only after a pass that looks for the largest value.
    "fp8": Precision("fp8", 1, "fp8", 2 + 2 + 1 + 1),
    # torchao, a scale for a tensor: torchao/float8/fsdp_utils.py and float8_tensor_parallel.py cast before they gather.
    "float8": Precision("float8", 1, "fp8", 2 + 2 + 1 + 1, gathered_bytes=1),
    # torchao, a scale for each row, and for gradients of weights one for each column: a pass each for the largest
    # values, and one each to cast. Results of the matmuls of gradients are multiplied by the scales afterwards
    # (float8_ops.py, addmm_float8_unwrapped).
    "float8 rowwise": Precision("float8 rowwise", 1, "fp8", 2 * (2 + 2 + 1), rescaled_bytes=2 + 2),
    # A scale of one byte for 32 elements (OCP Microscaling Formats 1.0, section 5); of NVFP4 for 16.
    "mxfp8": Precision("mxfp8", 33 / 32, "fp8", 2 + 2 * 33 / 32),
    # A pass for the largest value, one for rows, and one for columns, which a Hadamard transform mixes first.
    "nvfp4": Precision("nvfp4", 9 / 16, "fp4", 2 + 2 + 2 + 2 * 9 / 16),
}
"""By name (`precision_of`)."""


class ForwardBackward(NamedTuple):
    """A number for the forward pass and one for the backward pass."""

    forward: float
    backward: float


class KeptTraffic(NamedTuple):
    """Bytes read and written for each byte that a layer keeps for its backward pass, and for each of its weights."""

    of_kept: float
    of_weights: float


class GatherScatter(NamedTuple):
    """A number for what is gathered, and one for what is reduced and scattered."""

    gathered: float
    scattered: float


NOT_COPIED = GatherScatter(0, 0)
NOTHING_KEPT = KeptTraffic(0, 0)
NONE = ForwardBackward(0, 0)
SORTED = ForwardBackward(2 * 4, 2 * 4)
"""Bytes of tokens that are sorted by expert and back: each time read and written in two bytes."""
ROUTER = ForwardBackward(45, 80)
"""Kernels of a router in PyTorch: scores, the largest of them, losses, counts, and indices of rows."""


@dataclass(frozen=True)
class KernelCosts:
    """Constants: what kernels read and write besides the operands of matmuls. Bytes are for a dtype of two bytes.

    Attributes:
        score_bytes: by softmax and dropout, for each attention score; None if attention is fused.
        residual_bytes: by norms, dropout and residual sums, for each element of the residual stream.
        head_bytes: by rotary positions, for each element of queries and keys, where `residual_bytes` has none.
        head_norm_bytes: by norms of queries and keys, for each element, where a model has them and nothing fuses them.
        mlp_bytes: by the activation function, for each hidden element of the MLP.
        logit_bytes: by the loss, forward and backward, for each logit.
        optimizer_bytes: by the optimizer, gradient clipping and casts, for each parameter.
        launches: kernels launched for a layer, in units of `Constants.kernel_seconds`; with recomputation of attention
            alone, where a stack has that.
        stacked_launches: further kernels of a layer, where a loop copies into stacks what layers keep.
        softmax_multiple: the fused softmax takes only multiples of so many sequences x heads of a device.
        unfused_bytes: like `score_bytes`, where it does not take them.
        unfused_launches: further kernels of a layer, where it does not take them.
        row_bytes: to sort tokens by expert and back, for each element of each token's choices.
        router_launches: further kernels of a layer with experts.
        row_seconds: of each copy of a row, where a TPU copies rows one by one by their index.
        expert_launches: further kernels for each expert of a device.
        bias_bytes: to add biases of experts after their last matmul, for each element of each token's choices.
        bias_launches: further kernels for each expert of a device whose experts have biases.
        head_multiple: the fused attention of a TPU pads heads to a multiple of so many features.
        fused_experts: whether matmuls of experts also activate, and cast to a `Precision`, what they compute.
        copies_shards: whether gathered weights are copied out of one buffer, and their gradients into one.
        sequence_bytes: to copy an element that is gathered, and one that is scattered, along the sequence, because that
            is not the first dim; of a slow copy, as many as take that time at the rate of others.
        sum_bytes: to add the gradients of two projections for an element of the input that they share.
        kept: to write and read what layers keep, and to cast their weights.
        stacked: in addition, where a loop copies into stacks what layers keep, and slices weights and gradients.
        cast_ahead_bytes: of those of `stacked` for a weight, which pipeline stages save that cast weights once a step.
    """

    score_bytes: ForwardBackward | None
    residual_bytes: ForwardBackward
    mlp_bytes: ForwardBackward
    logit_bytes: float
    optimizer_bytes: float
    launches: ForwardBackward
    stacked_launches: ForwardBackward = NONE
    head_bytes: ForwardBackward = NONE
    head_norm_bytes: ForwardBackward = NONE
    softmax_multiple: int = 1
    unfused_bytes: ForwardBackward = NONE
    unfused_launches: ForwardBackward = NONE
    row_bytes: ForwardBackward = SORTED
    row_seconds: float = 0
    router_launches: ForwardBackward = ROUTER
    expert_launches: ForwardBackward = NONE
    bias_bytes: ForwardBackward = NONE
    bias_launches: ForwardBackward = NONE
    head_multiple: int = 1
    fused_experts: bool = False
    copies_shards: bool = False
    sequence_bytes: GatherScatter = NOT_COPIED
    sum_bytes: float = 0
    kept: KeptTraffic = NOTHING_KEPT
    stacked: KeptTraffic = NOTHING_KEPT
    cast_ahead_bytes: float = 0


class Recipe(NamedTuple):
    """What the recipes of a stack do, where a published run does not say.

    Attributes:
        optimizer_sharded: the stage of ZeRO along the data axis; along the fsdp axis it is the third.
        sequence_parallel: whether the tensor axis also splits the tokens between matmuls.
        recompute: "none", "full", or "selective", which recomputes attention.
    """

    optimizer_sharded: ZeroStage = "none"
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"


PLAIN = Recipe()
ASSUMED_MEMORY_ERROR = 0.15
"""Of formulas that no published memory was compared with: the margin of a search for those of meshmark."""


class Memory(NamedTuple):
    """Bytes that a stack keeps on a device.

    Attributes:
        used_bytes: of each parameter that the device holds: weights.
        gradient_bytes: of each such parameter: sums of gradients.
        updated_bytes: of each parameter that the device updates.
        logit_bytes: of each logit: itself, arrays of the loss, and gradients.
        fragmentation: memory that the allocator takes for each byte that is in use.
        fresh_bytes: of each parameter of a layer and of the head's table: gradients before they are added to sums.
        unreduced_bytes: of each parameter before it is sharded: sums of gradients over microbatches, which are reduced
            only after the last; 0 if each microbatch's are.
        error: the largest of these formulas for a published memory of the stack, as a fraction, rounded up to a
            hundredth (docs/reference/published.md, "Memory"); None where no memory is published.
    """

    used_bytes: float
    gradient_bytes: float
    updated_bytes: float
    logit_bytes: float
    fragmentation: float = 1.0
    fresh_bytes: float = 0
    unreduced_bytes: float = 0
    error: float | None = None

    @property
    def margin(self) -> float:
        """The error, or the assumed one."""
        return ASSUMED_MEMORY_ERROR if self.error is None else self.error


EAGER_LOSS = 2 + 4 + 4 + 4 + 2
"""Bytes of a logit with PyTorch's loss as single operations: in bfloat16, in float32, its logarithm, the gradient of
that, and its own in bfloat16."""


@dataclass(frozen=True)
class Stack:
    """Rules of a training program, and the constants of its kernels.

    Attributes:
        name: as published tables name it.
        kernels: constants.
        waits: overlapped collectives -> when the device waits for them; for all others at once.
        repeats: what full recomputation repeats of a layer: all of it, or all but its last matmul and the reduction
            after it, whose results the backward pass does not need.
        embedding_and_head: which pipeline stages embed and compute the loss.
        lockstep: whether all stages of a pipeline exchange arrays at the end of each tick, or each when it has them.
        outermost: mesh axes that lie outside of all others when devices are numbered host by host, outermost first.
        shares_cards: whether groups that have several but not all devices of their hosts use the same network cards.
        reduce_dtype: of gradients while they are reduced over devices.
        kernels_have_latency: whether `Constants.kernel_seconds` is the latency of each kernel on the device, in series
            with its work, because the host launches ahead; otherwise it is the host's time, beside the device's.
        uses_torchao: whether float8 is that of torchao; otherwise it is that of TransformerEngine or XLA.
        recipe: what published runs are taken to do where they do not say.
        selective: what selective recomputation repeats: attention, or all but attention and every second matmul.
        gathers_inputs: whether a tensor axis that splits tokens gathers them for each branch, or for each projection.
        gathers_logits: whether all devices of the tensor axis compute the loss of all logits.
        pads_experts: whether each expert computes as many rows as the busiest one. They count as sent, too.
        first_tables: of the tables of the embedding and the head, those whose gather and whose last reduce-scatter
            nothing hides; with none it is those of a layer.
        deduplicates: whether a host, or inside a host a device, that has several experts of a token receives it once.
        constants_of: the name of the stack whose machine files have its constants; by default its own.
        memory: what it keeps on a device; None where the formulas of its papers or of meshmark say so.
        meshes: axes that its runs combine, for a search; none where its meshes are not known. Where `expert` is not one
            of them, devices of other axes split the experts.
    """

    name: str
    kernels: KernelCosts
    waits: Mapping[Collective, Until] = field(hash=False)
    repeats: Literal["all", "all but the last"] = "all but the last"
    embedding_and_head: Literal["first and last", "all"] = "all"
    lockstep: bool = False
    outermost: tuple[str, ...] = ()
    shares_cards: bool = False
    reduce_dtype: ReduceDtype = "bfloat16"
    kernels_have_latency: bool = False
    uses_torchao: bool = False
    recipe: Recipe = PLAIN
    selective: Literal["attention", "every second matmul"] = "attention"
    gathers_inputs: Literal["branch", "projection"] = "branch"
    gathers_logits: bool = False
    pads_experts: bool = False
    first_tables: int = 0
    deduplicates: bool = False
    constants_of: str = ""
    memory: Memory | None = None
    meshes: tuple[tuple[str, ...], ...] = ()

    @property
    def fitted_as(self) -> str:
        """The name of the stack whose machine files have its constants."""
        return self.constants_of or self.name

    def until(self, collective: Collective) -> Until:
        """When the device waits for a collective."""
        return self.waits.get(collective, "at once")
