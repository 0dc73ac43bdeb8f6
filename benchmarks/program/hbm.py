"""What an instruction reads and writes in the memory of its device: HBM, and not what a TPU keeps beside its cores.

An instruction reads its operands and writes what it makes, and a fusion does so once, whatever is in it. A slice
touches what it slices, and an update in place what it updates. What a collective writes on its way is not counted, nor
is it found out what a GPU's caches hold.
"""

import re
from collections.abc import Sequence

from benchmarks.program.hlo import Computation, Instruction, Module, bytes_of

_FREE = (
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "opt-barrier", "after-all"),
    *("partition-id", "replica-id", "while", "conditional", "call", "call-start", "async-start"),
)
"""They make no bytes of their own, or what they call does."""
_FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "AsyncCollectiveDone")
_SLICES = ("dynamic-slice", "slice", "gather")
_ARRAY = re.compile(r"[a-z][a-z0-9]*\[[0-9,]*\](?:\{[^}]*\})?")


class Hbm:
    """Of a program. What a TPU's has in `S(1)` and above is not in HBM, nor elsewhere what is in `S(5)`, the host's."""

    def __init__(self, module: Module) -> None:
        self.computations = module.computations
        self.elsewhere = re.compile(r"S\([1-9]" if ":T(" in module.text else r"S\(5\)")

    def touched(self, instruction: Instruction, where: Computation) -> int:
        """Bytes that it reads and writes."""
        opcode, target = instruction.opcode, instruction.attributes.get("custom_call_target", '""')[1:-1]
        if opcode in _FREE or opcode.endswith(("-done", "-update")) or target in _FREE_CALLS:
            return 0
        if opcode == "fusion":
            return self._fusion(instruction, where)
        if opcode == "dynamic-update-slice":
            return 2 * self._bytes(where.operand(instruction, 1).shape, like=instruction.shape)
        if opcode in ("copy-start", "slice-start"):  # the destination, and the source or what is sliced of it
            parts = _parts(instruction.shape)
            made, source = (parts[0], parts[1]) if opcode == "copy-start" else (parts[1], parts[0])
            return self._bytes(made) + self._bytes(made, like=source)
        written = self._bytes(instruction.shape)
        if opcode in _SLICES:
            return written + self._bytes(instruction.shape, like=where.operand(instruction, 0).shape)
        read = sum(self._bytes(operand.shape) for operand in where.operands(instruction))
        if opcode.endswith("-start") and opcode != "all-reduce-start":
            written -= read  # operands are in what it makes, too
        if target.startswith("__cu"):  # libraries' calls have a workspace
            written = sum(self._bytes(part) for part in _parts(instruction.shape) if not re.match("[su]8", part))
        return read + written

    def _bytes(self, shape: str, like: str = "") -> int:
        """Of the arrays of a shape that are in HBM; or all of them, if another one is."""
        if like:
            return 0 if self.elsewhere.search(like) else bytes_of(shape)
        return sum(bytes_of(array) for array in _ARRAY.findall(shape) if not self.elsewhere.search(array))

    def _fusion(self, fusion: Instruction, where: Computation) -> int:
        """Its operands as far as it uses them, and what it makes."""
        inside = self.computations[fusion.computation("calls")]
        if '"AsyncCollectiveStart"' in inside.root.attributes.get("custom_call_target", ""):
            return self._bytes(fusion.shape)  # the operand and the result; what else is of its chain has them, too
        read = 0
        for index, operand in enumerate(where.operands(fusion)):
            if whole := self._bytes(operand.shape):
                read += min(whole, self._read(inside, index, whole))
        return read + self._written(inside, inside.root, fusion.shape)

    def _read(self, inside: Computation, index: int, whole: int) -> int:
        """Of a parameter of so many bytes."""
        instructions = inside.instructions.values()
        names = {each.name for each in instructions if each.opcode == "parameter" and each.operands == (str(index),)}
        for each in instructions:  # in order, so that what is the same array by another name is found
            if each.opcode == "bitcast" and names.intersection(each.operands):
                names.add(each.name)
        read = 0
        for each in instructions:
            for place, name in enumerate(each.operands):
                if name in names:
                    read += self._read_by(each, place, inside, whole)
        return read

    def _read_by(self, user: Instruction, place: int, inside: Computation, whole: int) -> int:
        if user.opcode in ("bitcast", "tuple") or _woven(user):
            return 0
        if place == 0 and user.opcode == "dynamic-update-slice":
            return 0
        if place == 0 and user.opcode in _SLICES:
            return bytes_of(user.shape)
        if user.opcode == "fusion":
            return self._read(self.computations[user.computation("calls")], place, whole)
        return whole

    def _written(self, inside: Computation, made: Instruction, shape: str) -> int:
        """By a fusion whose root, or a part of whose root, is this and has this shape outside."""
        if made.opcode == "tuple":
            parts = zip(inside.operands(made), _parts(shape), strict=True)
            return sum(self._written(inside, operand, part) for operand, part in parts)
        made, whole = inside.under(made, "bitcast"), self._bytes(shape)
        if made.opcode == "parameter" or _woven(made):
            return 0
        if made.opcode == "dynamic-update-slice":
            updated = inside.under(inside.operand(made, 0), "bitcast")
            return self._bytes(inside.operand(made, 1).shape, like=shape) if updated.opcode == "parameter" else whole
        if made.opcode == "fusion":
            nested = self.computations[made.computation("calls")]
            return self._written(nested, nested.root, shape)
        return whole


def _woven(instruction: Instruction) -> bool:
    """Whether it is of a collective that goes on through several fusions: that counts where it starts."""
    chain, target = (instruction.attributes.get(each, "") for each in ("frontend_attributes", "custom_call_target"))
    return "chain_id=" in chain or "AsyncCollective" in target


def _parts(shape: str) -> Sequence[str]:
    """Of a tuple, each as it stands; or the shape itself.

    >>> _parts("((f32[2]{0}), f32[3]{0:T(8,128)S(1)})")
    ['f32[2]{0}', 'f32[3]{0:T(8,128)S(1)}']
    """
    return _ARRAY.findall(shape)
