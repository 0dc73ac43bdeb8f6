"""Kernels of a compiled program for one GPU, by kind: how many a step launches, and the bytes that they move.

A program says which instructions become kernels, which matmuls have an epilogue, and what each kernel reads and writes.
It says no times, and not which implementation the autotuner of an attached GPU chooses.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks.program.compiled import trips
from benchmarks.program.flops import KERNELS, MATMULS
from benchmarks.program.hbm import FREE, FUSIONS, MemoryTraffic
from benchmarks.program.hlo import Computation, Instruction, Module, parse
from strategies.core.rules import OPTIMIZER_SCOPE

KernelKind = Literal["matmul", "attention", "copy", "optimizer", "pass"]
"""What a kernel does: "copy" moves or casts arrays and computes nothing; "pass" is any other pass over memory."""
KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
_MOVES = {
    *("parameter", "constant", "bitcast", "tuple", "slice", "dynamic-slice", "dynamic-update-slice", "copy", "reshape"),
    *("transpose", "concatenate", "convert", "copy-start", "broadcast", "pad"),
}
"""Opcodes that compute nothing."""


@dataclass(frozen=True)
class Kernel:
    """An instruction that is a kernel: `times` in a step, each reads and writes `moved_bytes`.

    Attributes:
        name: of the instruction; XLA's own kernels are named after it, with underscores for dots.
        epilogue: what cuBLASLt does to the result of a matmul, such as "BIAS"; "" for other kernels.
    """

    name: str
    kind: KernelKind
    times: int
    moved_bytes: int
    epilogue: str = ""


def kernels_of(text: str) -> list[Kernel]:
    """The kernels of a compiled step (`jax.stages.Compiled.as_text()`), those of a loop once for all iterations.

    Of conditionals all branches count.
    """
    module = parse(text)
    return [*_kernels(module, MemoryTraffic(module), module.entry, 1)]


def totals(kernels: list[Kernel]) -> Mapping[KernelKind, tuple[int, int]]:
    """Kernels and bytes of a step by kind."""
    counts, moved = Counter[KernelKind](), Counter[KernelKind]()
    for each in kernels:
        counts[each.kind] += each.times
        moved[each.kind] += each.times * each.moved_bytes
    return {kind: (counts[kind], moved[kind]) for kind in KINDS}


def kernel_columns(kernels: list[Kernel]) -> dict[str, int]:
    """The columns of a row: kernels and bytes of a step by kind."""
    by_kind = totals(kernels)
    counts = {f"compiled.kernels.{kind}": count for kind, (count, _) in by_kind.items()}
    return counts | {f"compiled.kernel_bytes.{kind}": moved for kind, (_, moved) in by_kind.items()}


def pass_bytes(kernels: list[Kernel]) -> int:
    """Bytes of a step's memory passes: of all kernels but matmuls and attention."""
    return sum(moved for kind, (_, moved) in totals(kernels).items() if kind not in ("matmul", "attention"))


def _kernels(module: Module, memory: MemoryTraffic, computation: Computation, times: int) -> Iterator[Kernel]:
    for each in computation.instructions.values():
        if each.opcode == "while":
            body = module.computations[each.computation("body")]
            iterations = 1 if "taken" in each.attributes else trips(each, computation, module)
            yield from _kernels(module, memory, body, times * iterations)
        elif each.opcode in ("call", "conditional"):
            for name in each.computations("to_apply") or each.computations("branch_computations"):
                yield from _kernels(module, memory, module.computations[name], times)
        elif not ({each.opcode, each.target} & FREE or each.opcode.endswith(("-done", "-update"))):
            # A Triton kernel's configuration is not JSON.
            of_library = "cublas" in each.target
            epilogue = str(each.configured("gemm_backend_config", "epilogue") or "") if of_library else ""
            moved = memory.bytes_moved(each, computation)
            yield Kernel(each.name, kind_of(module, each), times, moved, epilogue)


def kind_of(module: Module, instruction: Instruction) -> KernelKind:
    """The kind of an instruction that is a kernel."""
    inside = [instruction]
    if instruction.opcode in FUSIONS:
        inside = [*module.computations[instruction.computation("calls")].instructions.values()]
    if any("fmha" in each.target for each in inside):
        return "attention"
    if any(each.opcode in MATMULS or each.target in KERNELS for each in inside):
        return "matmul"
    # A fusion may have no name of its own.
    if any(f"/{OPTIMIZER_SCOPE}/" in each.attributes.get("op_name", "") for each in inside):
        return "optimizer"
    return "copy" if {each.opcode for each in inside} <= _MOVES else "pass"
