"""A stack: what a training program overlaps, and the constants of its kernels. Machine files state both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

Collective = Literal["gathers", "halves", "keys and values", "tensor", "sends"]
"""Collectives that a stack may overlap with the compute of a layer:

- gathers of sharded weights, and reduce-scatters of their gradients;
- all reductions over the tensor axis, and tokens sent to experts, with `TrainConfig.halves`;
- keys and values on their way around a ring of a context axis;
- gathers and reduce-scatters over the tensor axis in chunks, all but one chunk of each;
- sends to the next stage, with several chunks on a stage.
"""
HALVES_SHARE, TOKENS_SHARE, PAIR_SHARE = 0.16, 0.5, 0.8
"""Shares of reductions, and of tokens sent to experts, that `halves` hides, and of what the passes of a pair send. In
schedules for H100, v5e and v5p (docs/experiments) 15% to 20%, 22% to 64% and 79% less is waited for."""


class Precision(NamedTuple):
    """The operands of the layers' matmuls, where they are narrower than the dtype of the step: the bytes of an element
    with its share of the scaling factors, and whether `fp8_share` or `fp4_share` of a `Chip` is its rate.
    """

    itemsize: float
    rate: Literal["fp8", "fp4"]


CAST_BYTES = 6
"""To cast an element of an operand or gradient: two reads, one for the largest value, and writes by row and column."""
PRECISIONS: Mapping[str, Precision] = {
    "fp8": Precision(1, "fp8"),
    # A scale of one byte for 32 elements (OCP Microscaling Formats 1.0, section 5); of NVFP4 for 16.
    "mxfp8": Precision(33 / 32, "fp8"),
    "nvfp4": Precision(9 / 16, "fp4"),
}
Factor = Annotated[float, Meta(ge=0, le=1000)]
"""A constant of kernels. Those of all machine files are below 100."""


class ForwardBackward(NamedTuple):
    """A number for the forward pass and one for the backward pass."""

    forward: Factor
    backward: Factor


class KeptTraffic(NamedTuple):
    """Bytes read and written for each byte that a layer keeps for its backward pass, and for each of its weights."""

    of_kept: Factor
    of_weights: Factor


class EpilogueTraffic(NamedTuple):
    """Bytes read and written backward for each hidden element of the MLP, and each element of queries and keys."""

    of_mlp: Factor
    of_heads: Factor


NOTHING_KEPT = KeptTraffic(0, 0)
NONE = ForwardBackward(0, 0)


@dataclass(frozen=True)
class KernelCosts:
    """What kernels read and write besides the operands of matmuls. Bytes are for a dtype of two bytes.

    Attributes:
        residual_bytes: by norms, dropout and residual sums, for each element of the residual stream.
        mlp_bytes: by the activation function, for each hidden element of the MLP.
        logit_bytes: by the loss, forward and backward, for each logit.
        optimizer_bytes: by AdamW, gradient clipping and casts, for each parameter.
        launches: kernels launched for a layer, in units of `Constants.kernel_seconds`.
        head_bytes: by rotary positions, for each element of queries and keys, where `residual_bytes` has none.
        again: the part of the forward pass's bytes that is read and written again where only results of matmuls are
            kept; a compiler computes the rest inside kernels of the backward pass.
        epilogues: where matmuls add biases and apply GELU (backends/xla_options.py), what is left of `mlp_bytes` and
            `head_bytes`.
        kept: to write and read what layers keep, and to cast their weights.
        stacked: in addition, where a loop copies into stacks what layers keep, and slices weights and gradients.
    """

    residual_bytes: ForwardBackward
    mlp_bytes: ForwardBackward
    logit_bytes: Factor
    optimizer_bytes: Factor
    launches: ForwardBackward
    head_bytes: ForwardBackward = NONE
    again: Annotated[float, Meta(ge=0, le=1)] = 1
    epilogues: EpilogueTraffic | None = None
    kept: KeptTraffic = NOTHING_KEPT
    stacked: KeptTraffic = NOTHING_KEPT


@dataclass(frozen=True)
class Stack:
    """Rules of a training program, and the constants of its kernels.

    Attributes:
        name: as machine files name it.
        kernels: constants.
        overlaps: collectives for which the device waits at the end of the layer. For all others it waits at once.
        attention: whether attention is one kernel, or scores are arrays in memory.
        embedding_and_head: which pipeline stages embed and compute the loss.
        lockstep: whether all stages of a pipeline exchange arrays at the end of each tick, or each when it has them.
        kernels_have_latency: whether `Constants.kernel_seconds` is the latency of each kernel on the device, in series
            with its work, because the host launches ahead; otherwise it is the host's time, beside the device's.
    """

    name: str
    kernels: KernelCosts
    overlaps: tuple[Collective, ...] = ()
    attention: Literal["fused", "unfused"] = "fused"
    embedding_and_head: Literal["first and last", "all"] = "all"
    lockstep: bool = False
    kernels_have_latency: bool = False
