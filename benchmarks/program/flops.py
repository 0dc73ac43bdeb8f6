"""What an instruction multiplies: two FLOPs for each multiplication in dots and convolutions, and none else."""

import math
import re

from benchmarks.program.hlo import Computation, Instruction, dims, integers
from strategies.costs.predict import Cost


def flops(instruction: Instruction, where: Computation) -> int:
    """Of an instruction by itself."""
    target, config = (instruction.attributes.get(each, "") for each in ("custom_call_target", "backend_config"))
    if instruction.opcode == "convolution":
        return _of_convolution(instruction, where)
    if "__cudnn$fmha" in target:
        queries, keys = (dims(where.operand(instruction, index).shape) for index in (0, 1))
        square = (5 if "Backward" in target else 2) * 2 * math.prod(queries) * keys[1]
        return square if keys[1] % 2 else square * 3 // 4  # as attention.py computes it: without early to late
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


def more_flops(cost: Cost, compiled: int) -> dict[str, int]:
    """FLOPs of a device that are compiled and not stated, by what they are for; empty where there are none.

    `logits again`: the head's backward pass computes the logits again, as it gathers its weights again. `padding`: GPUs
    have a matmul with some more rows of the vocabulary, for these to be a multiple.
    """
    plan = cost.plan
    row = 2 * plan.config.embed * plan.train.batch_size * plan.config.sequence // plan.mesh.size
    left, found = compiled - sum(cost.flops.values()) // plan.mesh.size, {}
    if left >= row * plan.padded_vocab and not plan.logits_again:
        found["logits again"] = row * plan.padded_vocab
        left -= row * plan.padded_vocab
    if left > 0 and left % row == 0 and left // row < 256:
        found["padding"], left = left, 0
    return found | ({"unexplained": left} if left else {})
