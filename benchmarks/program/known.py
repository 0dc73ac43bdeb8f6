"""What the reader knows: opcodes and targets of custom calls. A program with any other one is `unread`.

A new version of XLA may express work in new ways. Counted as nothing, they would look like an improvement.
"""

import re

from benchmarks.program.collectives import OPCODES as COLLECTIVES
from benchmarks.program.flops import KERNELS, MATMULS
from benchmarks.program.hlo import Instruction


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CALLING = _words("async call conditional fusion while")
"""They execute other computations of the program, which are read."""
ELEMENTWISE = _words("""
    abs add and atan2 cbrt ceil clamp compare complex convert cosine count-leading-zeros divide erf exponential
    exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt
    power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left
    shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan tanh xor
""")
REDUCING = _words("reduce reduce-window select-and-scatter sort topk")
"""They apply a scalar computation to elements."""
MOVING = _words("""
    bitcast bitcast-convert broadcast concatenate copy dynamic-slice dynamic-update-slice gather pad reshape reverse
    scatter slice transpose
""")
NAMING = _words("""
    add-dependency after-all constant domain get-dimension-size get-tuple-element iota opt-barrier parameter
    partition-id replica-id rng rng-bit-generator rng-get-and-update-state set-dimension-size tuple
""")
"""They name, number or generate values."""
KNOWN = CALLING | ELEMENTWISE | REDUCING | MOVING | NAMING | MATMULS.keys() | COLLECTIVES.keys()
"""Known opcodes, without their asynchronous forms. Nothing counts the FLOPs of factorisations and transforms (cholesky,
triangular-solve, fft) and of other matmuls (ragged-dot, scaled-dot), nor the bytes of other communication
(collective-broadcast, send, recv, infeed, outfeed), so these are unknown."""

TPU_TARGETS = _words("""
    AllocateBuffer AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart ConcatBitcast
    GatherScatterIndicesBitpacked PrepareAsyncCallDone PrepareAsyncCallStart
""")
"""Custom calls of TPU programs without matmuls. A collective that such calls start and end is counted by itself.
GatherScatterIndicesBitpacked packs the indices of a gather or a scatter. PrepareAsyncCallStart has no operands: it
makes the flag of an asynchronous call that follows, as of a scatter on SparseCores, and that call is read by itself."""
RANDOM_TARGETS = _words("cu_threefry2x32 cu_threefry2x32_ffi")
"""JAX's random numbers on GPUs."""
TOP_TARGETS = _words("TopK __gpu$TopK")
"""The largest elements of arrays, as a router chooses experts, on CPUs and on GPUs."""
SORT_TARGETS = _words("xla.gpu.ext.cub_scan xla.gpu.ext.cub_sort_keys xla.gpu.ext.cub_sort_pairs")
"""Sorts and running sums on GPUs, by NVIDIA's library CUB. Without a GPU at hand XLA may compile its own."""
TARGETS = TPU_TARGETS | RANDOM_TARGETS | TOP_TARGETS | SORT_TARGETS | KERNELS.keys()


def unknown(instruction: Instruction) -> str:
    """Name the opcode or the custom call of an instruction if it is unknown; "" otherwise."""
    opcode = re.sub("-(start|update|done)$", "", instruction.opcode)  # parts of an asynchronous instruction
    if opcode == "custom-call":
        return "" if instruction.target in TARGETS else f"custom call {instruction.target}"
    return "" if opcode in KNOWN else f"opcode {instruction.opcode}"
