"""FLOPs of instructions: two per multiplication in dots and convolutions, and none for anything else."""

import math
import re

from benchmarks.program.hlo import Computation, Instruction, dims, integers
from strategies.costs.predict import Cost
from strategies.model.attention import Reach
from strategies.model.attention.splash import MATMULS


def flops(instruction: Instruction, computation: Computation) -> int:
    """FLOPs of one execution of an instruction, without the computations that it calls.

    Calls of cuBLAS and of cuDNN's attention count like the dots that they replace: causal attention like that of
    attention/dense.py, attention with a window like the blocks of attention/sparse.py. A Pallas kernel of a TPU
    counts what its own cost estimate says. The kernels of splash attention have none: for each query they count N keys,
    where a scope `keys_N` is around them, or else all.
    """
    target, config = (instruction.attributes.get(each, "") for each in ("custom_call_target", "backend_config"))
    if instruction.opcode == "convolution":
        return _of_convolution(instruction, computation)
    if estimated := re.search(r'"cost_estimate":\{"flops":"([0-9]+)"', config):
        return int(estimated[1])
    if target == '"tpu_custom_call"':
        return _of_splash(instruction, computation)
    if "__cudnn$fmha" in target:
        return _of_cudnn(instruction, computation, 5 if "Backward" in target else 2)
    if instruction.opcode == "dot":
        contracted = instruction["lhs_contracting_dims"]
    elif cublas := re.search(r'"dot_dimension_numbers":\{"lhs_contracting_dimensions":\[([^\]]*)\]', config):
        contracted = cublas[1]
    else:
        return 0
    lhs = dims(computation.operand(instruction, 0).shape)
    return 2 * math.prod(dims(instruction.shape)) * math.prod(lhs[dim] for dim in integers(contracted))


def _of_cudnn(kernel: Instruction, computation: Computation, matmuls: int) -> int:
    """FLOPs of a kernel of cuDNN's attention."""
    queries, keys = (dims(computation.operand(kernel, index).shape) for index in (0, 1))
    config = kernel.attributes.get("backend_config", "")
    scores = re.search(r'"intermediate_tensor_shape":[^\]]*"([0-9]+)"\]', config)
    tokens = int(scores[1]) if scores else keys[1]
    row = matmuls * 2 * math.prod(queries)
    window = re.search(r'"sliding_window_length":\s*"?([1-9][0-9]*)', config)
    if window and (reach := Reach(int(window[1]))).skips(tokens):
        return row * reach.computed_keys(tokens)
    if tokens % 2 or '"mask_type":"NO_MASK"' in config.replace(" ", ""):
        return row * tokens
    return row * tokens * 3 // 4  # like attention/dense.py, count no early queries to late keys


def _of_splash(kernel: Instruction, computation: Computation) -> int:
    """FLOPs of a kernel of splash attention; 0 for other kernels."""
    source, operands = kernel.attributes.get("op_name", ""), computation.operands(kernel)
    name = re.search("splash_m[hq]a_(fwd|dq|dkv)", source)
    if not name:
        return 0
    fused = r"use_fused_bwd_kernel\": true" in kernel.attributes.get("frontend_attributes", "")
    matmuls = MATMULS[name[1]] + (name[1] == "dkv" and fused)  # which has the matmul for dq, too
    queries, keys = [dims(each.shape) for each in operands if re.match("bf16|f", each.shape)][:2]
    counted = re.search(r"\bkeys_([0-9]+)\b", source)
    return matmuls * 2 * math.prod(queries) * (int(counted[1]) if counted else keys[-2])


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
        stride, dilation, gap, pad = (
            int(window[field].split("x")[index].split("_")[0]) if field in window else default
            for field, default in (("stride", 1), ("rhs_dilate", 1), ("lhs_dilate", 1), ("pad", 0))
        )
        positions = (o * stride + k * dilation - pad for o in range(out[dim]) for k in range(rhs[dim]))
        flops *= sum(0 <= position <= (lhs[dim] - 1) * gap and position % gap == 0 for position in positions)
    return flops


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
