"""FLOPs of instructions: two per multiplication in dots and convolutions, and none for any other that is known.

A program with an opcode or a custom call that is not listed here is `unread`. A new version of XLA may express work in
new ways. Counted as nothing, they would look like an improvement.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.program.collectives import OPCODES as COLLECTIVES
from benchmarks.program.hlo import Computation, HLOError, Instruction, dims, integers
from strategies.costs.predict import Cost
from strategies.model.attention import Reach
from strategies.model.attention.splash import MATMULS as SPLASH_MATMULS


def flops(instruction: Instruction, computation: Computation) -> int:
    """FLOPs of one execution of an instruction, without the computations that it calls.

    Calls of cuBLAS and of cuDNN's attention count like the dots that they replace: causal attention like that of
    attention/dense.py, attention with a window like the blocks of attention/sparse.py. A Pallas kernel of a TPU
    counts what its own cost estimate says. The kernels of splash attention have none: for each query they count N keys,
    where a scope `keys_N` is around them, or else all.
    """
    count = MATMULS.get(instruction.opcode) or KERNELS.get(instruction.target)
    return count(instruction, computation) if count else 0


def _of_dot(dot: Instruction, computation: Computation) -> int:
    return _of_matmul(dot, computation, integers(dot["lhs_contracting_dims"]))


def _of_cublas(call: Instruction, computation: Computation) -> int:
    dims = _field(call, "gemm_backend_config", "dot_dimension_numbers", "lhs_contracting_dimensions")
    return _of_matmul(call, computation, [int(dim) for dim in dims])


def _of_matmul(instruction: Instruction, computation: Computation, contracted: Sequence[int]) -> int:
    lhs = dims(computation.operand(instruction, 0).shape)
    return 2 * math.prod(dims(instruction.shape)) * math.prod(lhs[dim] for dim in contracted)


def _of_cudnn(kernel: Instruction, computation: Computation, *, keys: int, values: int) -> int:
    """FLOPs of a kernel of cuDNN's attention: `keys` and `values` are matmuls of their width."""
    config = "cudnn_fmha_backend_config"
    mask = _field(kernel, config, "mask_type")
    tokens = int(_field(kernel, config, "intermediate_tensor_shape", "dimensions")[-1])
    window = int(kernel.configured(config, "sliding_window_length") or 0)
    (*queries, wide), (*_, narrow) = (dims(computation.operand(kernel, index).shape) for index in (0, 2))
    row = 2 * math.prod(queries) * (keys * wide + values * narrow)
    if window and (reach := Reach(window)).skips(tokens):
        return row * reach.computed_keys(tokens)
    if tokens % 2 or mask == "NO_MASK":
        return row * tokens
    return row * tokens * 3 // 4  # like attention/dense.py, count no early queries to late keys


def _of_pallas(kernel: Instruction, computation: Computation) -> int:
    """FLOPs of a Pallas kernel of a TPU."""
    estimated = kernel.configured("custom_call_config", "cost_estimate", "flops")
    return _of_splash(kernel, computation) if estimated is None else int(estimated)


def _field(kernel: Instruction, *path: str) -> Any:
    """A field of a kernel's `backend_config`; HLOError if it is missing."""
    value = kernel.configured(*path)
    if value is None:
        raise HLOError(f"custom call {kernel.target} without {'.'.join(path)}")
    return value


def _of_splash(kernel: Instruction, computation: Computation) -> int:
    """FLOPs of a kernel of splash attention; HLOError for other kernels."""
    source, operands = kernel.attributes.get("op_name", ""), computation.operands(kernel)
    name = re.search("splash_m[hq]a_(fwd|dq|dkv)", source)
    if not name:
        raise HLOError(f"custom call {kernel.target} without a cost estimate")
    fused = r"use_fused_bwd_kernel\": true" in kernel.attributes.get("frontend_attributes", "")
    matmuls = SPLASH_MATMULS[name[1]] + (name[1] == "dkv" and fused)  # which has the matmul for dq, too
    queries, keys = [dims(each.shape) for each in operands if re.match("bf16|f", each.shape)][:2]
    counted = re.search(r"\bkeys_([0-9]+)\b", source)
    return matmuls * 2 * math.prod(queries) * (int(counted[1]) if counted else keys[-2])


def _of_triton(kernel: Instruction, computation: Computation) -> int:
    """FLOPs of a grouped matmul (model/pallas/grouped_kernel.py), whose name says how many rows it multiplies.

    Of its arrays one has three dims: the matrices of the experts, or their gradient.
    """
    name = re.search(r"\bgrouped_matmul_([0-9]+)\b", kernel.attributes.get("op_name", ""))
    if not name:
        raise HLOError(f"custom call {kernel.target} that is not a grouped matmul")
    shapes = [dims(kernel.shape), *(dims(each.shape) for each in computation.operands(kernel))]
    return 2 * int(name[1]) * math.prod(next(shape for shape in shapes if len(shape) == 3)[1:])


def _of_convolution(convolution: Instruction, computation: Computation) -> int:
    """FLOPs of a convolution. TPU programs express dots as convolutions.

    Multiplications with padding and with the gaps of dilation do not count (XLA, service/hlo_cost_analysis.cc).
    """
    labels = re.split("_|->", convolution["dim_labels"])
    shapes = *(computation.operand(convolution, index).shape for index in (0, 1)), convolution.shape
    lhs, rhs, out = (dict(zip(names, dims(shape), strict=True)) for names, shape in zip(labels, shapes, strict=True))
    window = dict(field.split("=") for field in convolution.attributes.get("window", "{}")[1:-1].split())
    flops = 2 * out["b"] * out["f"] * rhs["i"]
    for index, dim in enumerate(sorted(set(lhs) - {"b", "f"})):
        stride, pad = _of_window(window, "stride", index, 1), _of_window(window, "pad", index, 0)
        dilation, gap = (_of_window(window, f"{side}_dilate", index, 1) for side in ("rhs", "lhs"))
        # Where each element of the kernel reads the padded and dilated input, for each element of the output.
        positions = (o * stride + k * dilation - pad for o in range(out[dim]) for k in range(rhs[dim]))
        flops *= sum(0 <= position <= (lhs[dim] - 1) * gap and position % gap == 0 for position in positions)
    return flops


def _of_window(window: Mapping[str, str], field: str, index: int, default: int) -> int:
    """A field of a convolution's window in one dim, such as 2 of `stride=1x2`; of `pad=1_1` the lower padding."""
    return int(window[field].split("x")[index].split("_")[0]) if field in window else default


Count = Callable[[Instruction, Computation], int]
MATMULS: Mapping[str, Count] = {"dot": _of_dot, "convolution": _of_convolution}
"""How each opcode that multiplies matrices is counted."""
KERNELS: Mapping[str, Count] = {
    **dict.fromkeys(("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"), _of_cublas),
    "__cudnn$fmhaSoftmax": partial(_of_cudnn, keys=1, values=1),
    "__cudnn$fmhaSoftmaxBackward": partial(_of_cudnn, keys=3, values=2),
    "tpu_custom_call": _of_pallas,
    "__gpu$xla.gpu.triton": _of_triton,
}
"""How each custom call that multiplies matrices is counted, by its target."""


def unstated_flops(cost: Cost, compiled: int) -> dict[str, int]:
    """FLOPs per step and device that are in the compiled program but not in the formulas, by cause.

    The result is empty if there are none.

    `logits again`: the head's backward pass recomputes the logits because it gathers its weights again. `padding`: GPU
    programs pad the vocabulary to a multiple. `unexplained`: the rest.
    """
    plan = cost.plan
    flops_per_vocab_row = 2 * plan.config.embed * plan.train.batch_size * plan.config.sequence // plan.mesh.size
    left, found = compiled - sum(cost.flops.values()) // plan.mesh.size, {}
    if left >= flops_per_vocab_row * plan.padded_vocab and not plan.logits_again:
        found["logits again"] = flops_per_vocab_row * plan.padded_vocab
        left -= flops_per_vocab_row * plan.padded_vocab
    if left > 0 and left % flops_per_vocab_row == 0 and left // flops_per_vocab_row < 256:
        found["padding"], left = left, 0
    return found | ({"unexplained": left} if left else {})


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
