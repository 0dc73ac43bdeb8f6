"""HBM traffic of instructions: the bytes that they read and write in device memory.

An instruction reads its operands and writes its result; a fusion does so once, whatever it contains. A slice accesses
only the sliced part, and an in-place update only the updated part. On TPUs, arrays in on-chip memory do not count.
Intermediate buffers of collectives and hits in a GPU's caches are not modelled.
"""

import re
from collections.abc import Sequence

from benchmarks.program.hlo import Computation, Instruction, Module, bytes_of

FUSIONS = ("fusion", "fusion-start")
"""Opcodes of fusions: GPU programs may start one and wait for it later."""
FREE = {
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "opt-barrier", "after-all"),
    *("partition-id", "replica-id", "while", "conditional", "call", "call-start", "async-start"),
    *("AllocateBuffer", "ConcatBitcast", "AsyncCollectiveDone"),
}
"""Opcodes, and targets of custom calls, that move nothing themselves."""
_SLICES = ("dynamic-slice", "slice", "gather")
_ARRAY = re.compile(r"[a-z][a-z0-9]*\[[0-9,]*\](?:\{[^}]*\})?")


class MemoryTraffic:
    """HBM traffic of one program.

    On TPUs, arrays in memory space `S(1)` or above are not in HBM; elsewhere, arrays in `S(5)` are in host memory.
    """

    def __init__(self, module: Module) -> None:
        self.computations = module.computations
        self.elsewhere = re.compile(r"S\([1-9]" if ":T(" in module.text else r"S\(5\)")

    def bytes_moved(self, instruction: Instruction, computation: Computation) -> int:
        """Bytes that one execution of an instruction reads and writes."""
        opcode, target = instruction.opcode, instruction.target
        if {opcode, target} & FREE or opcode.endswith(("-done", "-update")):
            return 0
        if opcode in FUSIONS:
            return self._fusion(instruction, computation)
        if opcode == "dynamic-update-slice":
            return 2 * self._bytes(computation.operand(instruction, 1).shape, like=instruction.shape)
        if opcode in ("copy-start", "slice-start"):
            # Writes the destination, and reads the source or the part of it that is sliced.
            parts = _parts(instruction.shape)
            result, source = (parts[0], parts[1]) if opcode == "copy-start" else (parts[1], parts[0])
            return self._bytes(result) + self._bytes(result, like=source)
        written = self._bytes(instruction.result)
        if opcode in _SLICES:
            return written + self._bytes(instruction.shape, like=computation.operand(instruction, 0).shape)
        read = sum(self._bytes(operand.shape) for operand in computation.operands(instruction))
        if opcode.endswith("-start") and opcode != "all-reduce-start" and instruction.result == instruction.shape:
            written -= read  # the tuple `(operand, result)` repeats the operands
        if target.startswith("__cu"):  # results of library calls include a workspace of bytes
            written = sum(self._bytes(part) for part in _parts(instruction.shape) if not re.match("[su]8", part))
        return read + written

    def _bytes(self, shape: str, like: str = "") -> int:
        """Bytes of the arrays in a shape that are in HBM; with `like`, all of them if that other shape is, else 0."""
        if like:
            return 0 if self.elsewhere.search(like) else bytes_of(shape)
        return sum(bytes_of(array) for array in _ARRAY.findall(shape) if not self.elsewhere.search(array))

    def _fusion(self, fusion: Instruction, computation: Computation) -> int:
        """Bytes of the operands that the fusion uses, and of its result."""
        inside = self.computations[fusion.computation("calls")]
        if inside.root.target == "AsyncCollectiveStart":
            return self._bytes(fusion.shape)  # the operand and the result, which the rest of the chain shares
        read = 0
        for index, operand in enumerate(computation.operands(fusion)):
            if whole := self._bytes(operand.shape):
                read += min(whole, self._read(inside, index, whole))
        return read + self._written(inside, inside.root, fusion.result)

    def _read(self, inside: Computation, index: int, whole: int) -> int:
        """Bytes that a computation reads of parameter `index`, which has `whole` bytes."""
        instructions = inside.instructions.values()
        names = {each.name for each in instructions if each.opcode == "parameter" and each.operands == (str(index),)}
        for each in instructions:  # follow aliases of the parameter, in program order
            if self._aliased(each) in names:
                names.add(each.name)
        read = 0
        for each in instructions:
            for position, name in enumerate(each.operands):
                if name in names:
                    read += self._read_by(each, position, inside, whole)
        return read

    def _aliased(self, instruction: Instruction) -> str:
        """Name of the operand of which an instruction is another view; empty if it is none.

        TPU programs also have fusions that only view a parameter: of weights, after a gather and before a matmul.
        """
        if instruction.opcode == "bitcast":
            return instruction.operands[0]
        if instruction.opcode == "fusion":
            inside = self.computations[instruction.computation("calls")]
            viewed = inside.unwrap(inside.root, "bitcast")
            if viewed.opcode == "parameter":
                return instruction.operands[int(viewed.operands[0])]
        return ""

    def _read_by(self, user: Instruction, position: int, inside: Computation, whole: int) -> int:
        if user.opcode in ("bitcast", "tuple") or _in_chain(user):
            return 0
        if position == 0 and user.opcode == "dynamic-update-slice":
            return 0
        if position == 0 and user.opcode in _SLICES:
            return bytes_of(user.shape)
        if user.opcode == "fusion":
            return self._read(self.computations[user.computation("calls")], position, whole)
        return whole

    def _written(self, inside: Computation, result: Instruction, shape: str) -> int:
        """Bytes that a fusion writes for `result`: its root or a part of it, with the given shape outside."""
        if result.opcode == "tuple":
            parts = zip(inside.operands(result), _parts(shape), strict=True)
            return sum(self._written(inside, operand, part) for operand, part in parts)
        result, whole = inside.unwrap(result, "bitcast"), self._bytes(shape)
        if result.opcode == "parameter" or _in_chain(result):
            return 0
        if result.opcode == "dynamic-update-slice":
            updated = inside.unwrap(inside.operand(result, 0), "bitcast")
            return self._bytes(inside.operand(result, 1).shape, like=shape) if updated.opcode == "parameter" else whole
        if result.opcode == "fusion":
            nested = self.computations[result.computation("calls")]
            return self._written(nested, nested.root, shape)
        return whole


def _in_chain(instruction: Instruction) -> bool:
    """Whether an instruction belongs to a collective that is split over several fusions.

    The collective is counted at its start.
    """
    chain = instruction.attributes.get("frontend_attributes", "")
    return "chain_id=" in chain or "AsyncCollective" in instruction.target


def _parts(shape: str) -> Sequence[str]:
    """Arrays of a tuple shape with their layouts; or the shape itself, if it is an array.

    >>> _parts("((f32[2]{0}), f32[3]{0:T(8,128)S(1)})")
    ['f32[2]{0}', 'f32[3]{0:T(8,128)S(1)}']
    """
    return _ARRAY.findall(shape)
