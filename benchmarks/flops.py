"""What an instruction multiplies: two FLOPs for each multiplication in dots and convolutions, and none else."""

import math
import re

from benchmarks.hlo import Computation, Instruction, dims, integers


def flops(instruction: Instruction, where: Computation) -> int:
    """Of an instruction by itself."""
    target, config = (instruction.attributes.get(each, "") for each in ("custom_call_target", "backend_config"))
    if instruction.opcode == "convolution":
        return _of_convolution(instruction, where)
    if "__cudnn$fmha" in target:
        queries, keys = (dims(where.operand(instruction, index).shape) for index in (0, 1))
        return (5 if "Backward" in target else 2) * 2 * math.prod(queries) * keys[1]
    if instruction.opcode == "dot":
        contracted = instruction["lhs_contracting_dims"]
    elif cublas := re.search(r'"dot_dimension_numbers":\{"lhs_contracting_dimensions":\[([^\]]*)\]', config):
        contracted = cublas[1]
    else:
        return 0
    lhs = dims(where.operand(instruction, 0).shape)
    return 2 * math.prod(dims(instruction.shape)) * math.prod(lhs[dim] for dim in integers(contracted))


def _of_convolution(convolution: Instruction, where: Computation) -> int:
    """TPUs spell dots so. Padding, and the gaps of dilation, are not multiplied (XLA, service/hlo_cost_analysis.cc)."""
    labels = re.split("_|->", convolution["dim_labels"])
    shapes = *(where.operand(convolution, index).shape for index in (0, 1)), convolution.shape
    lhs, rhs, out = (dict(zip(names, dims(shape), strict=True)) for names, shape in zip(labels, shapes, strict=True))
    window = dict(field.split("=") for field in convolution.attributes.get("window", "{}")[1:-1].split())
    flops = 2 * out["b"] * out["f"] * rhs["i"]
    for index, dim in enumerate(sorted(set(lhs) - {"b", "f"})):
        stride, dilation, gap, pad = (
            int(window[field].split("x")[index].split("_")[0]) if field in window else default
            for field, default in (("stride", 1), ("rhs_dilate", 1), ("lhs_dilate", 1), ("pad", 0))
        )
        places = (o * stride + k * dilation - pad for o in range(out[dim]) for k in range(rhs[dim]))
        flops *= sum(0 <= place <= (lhs[dim] - 1) * gap and place % gap == 0 for place in places)
    return flops
