"""The text of an optimised program (HLO), read into computations of instructions; compiled.py says what they mean.

    %name (parameters) -> shape {
      ROOT %name = shape opcode(operands), attribute=value, attribute=value
    }

Computations come before those that call them (XLA, HloModule::Print). Shapes of operands are not printed.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class HLOError(ValueError):
    """Text that cannot be read; the message names the instruction and what is missing."""


@dataclass(frozen=True)
class Instruction:
    """`name = shape opcode(operands), attributes`; the operands of a constant are its value.

    Of metadata `op_name` is an attribute: the function that it stems from, and the scopes around it.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: Mapping[str, str]

    def __getitem__(self, attribute: str) -> str:
        if attribute not in self.attributes:
            raise HLOError(f"%{self.name}: {self.opcode} without {attribute}")
        return self.attributes[attribute]

    def computation(self, attribute: str) -> str:
        """The computation that an attribute names."""
        return self[attribute].removeprefix("%")

    def computations(self, attribute: str) -> list[str]:
        """Those that it names; none where it is missing."""
        return re.findall(r"%([^\s,{}]+)", self.attributes.get(attribute, ""))


@dataclass(frozen=True)
class Computation:
    """Instructions by name, in order."""

    name: str
    instructions: Mapping[str, Instruction]
    root: Instruction

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """What made an operand."""
        name = instruction.operands[index] if index < len(instruction.operands) else f"operand {index}"
        if name not in self.instructions:
            raise HLOError(f"%{instruction.name}: no {name} in %{self.name}")
        return self.instructions[name]

    def origin(self, instruction: Instruction, index: int, opcode: str) -> Instruction:
        """What made an operand, copies aside; it must be of this opcode."""
        made = self.under(self.operand(instruction, index), "copy")
        if made.opcode != opcode:
            raise HLOError(f"%{instruction.name}: operand {index} is a {made.opcode}, no {opcode}")
        return made

    def under(self, instruction: Instruction, opcode: str) -> Instruction:
        """What it is a copy of, or a bitcast, of whatever else that may be one; or itself, if it is none."""
        for _ in self.instructions:
            if instruction.opcode != opcode:
                return instruction
            instruction = self.operand(instruction, 0)
        raise HLOError(f"%{instruction.name}: a {opcode} of itself")

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """What made its operands."""
        return [self.operand(instruction, index) for index in range(len(instruction.operands))]


@dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
        scheduled: whether instructions stand in the order in which they are run.
        text: what is computed, without names, sources, and how loops are cut up among the cores of a CPU. A conditional
            in a scope `taken_7_2` has the attribute `taken={7,2}`: how often its branches are, while the loop around it
            runs; and a loop, how often it does not run then, and how often once.
        computations: by name, those called before those that call them.
        entry: the computation that the program is.
    """

    scheduled: bool
    text: str
    computations: Mapping[str, Computation]
    entry: Computation


_NOISE = re.compile(  # what is said of a program that is no part of it
    r', metadata=\{(?:[^"{}]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}'
    r"|/\*index=[0-9]+\*/"
    r'|, backend_config=\{"outer_dimension_partitions":\[[^\]]*\]\}'
    r'|,"outer_dimension_partitions":\[[^\]]*\]'
    r'|fingerprint_before_lhs="[0-9a-f]*"'
)
_TAKEN = re.compile(r'/taken_([0-9_]+)/(?:cond|while)"')
_OP_NAME = re.compile(r', (op_name="(?:[^"\\]|\\.)*")')
_COMPUTATION = re.compile(r"(ENTRY )?%([^\s(]+) \(.*\{")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%(\S+) = (.*)")
_CALL = re.compile(r" ([a-z][a-z0-9-]*)\(")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,]*)\]")


def parse(text: str) -> Module:
    """Read `jax.stages.Compiled.as_text()`.

    Raises:
        HLOError: a line that is no instruction, a computation that does not end, or no entry.
    """
    header, *lines = _NOISE.sub(_told, text).split("\n")
    kept, computations, entry = [header.partition(",")[2]], {}, ""
    rest = iter(lines)
    for line in rest:
        if match := _COMPUTATION.fullmatch(line):
            name = match[2]
            body = _body(name, rest)
            computations[name] = _computation(name, body)
            kept += [f"%{name}", *(_OP_NAME.sub("", line) for line in body)]
            entry = name if match[1] else entry
    if not entry:
        raise HLOError("no ENTRY computation")
    text = _numbered("\n".join(kept))
    return Module("is_scheduled=true" in header, text, computations, computations[entry])


def _told(noise: re.Match[str]) -> str:
    """What is left of noise: a name, and what it says of how often branches are taken, or a loop runs."""
    name, taken = re.search(r'[{ ](op_name="(?:[^"\\]|\\.)*")', noise[0]), _TAKEN.search(noise[0])
    told = f", taken={{{taken[1].replace('_', ',')}}}" if taken else ""
    return f"{told}, {name[1]}" if name else told


def _numbered(text: str) -> str:
    """With numbers for names: these stem from the names of functions and arguments, and from what is optimised away."""
    numbers: dict[str, int] = {}
    return re.sub(r"%[^\s,(){}]+", lambda name: f"%{numbers.setdefault(name[0], len(numbers))}", text)


def _body(name: str, lines: Iterable[str]) -> list[str]:
    """The lines up to the bracket that ends a computation."""
    body = []
    for line in lines:
        if line.startswith("}"):
            return body
        body.append(line)
    raise HLOError(f"%{name} does not end")


def _computation(name: str, lines: Iterable[str]) -> Computation:
    instructions, root = {}, None
    for line in lines:
        match = _INSTRUCTION.fullmatch(line)
        if not match:
            raise HLOError(f"%{name}: no instruction: {line[:80]}")
        instruction = instructions[match[2]] = _instruction(match[2], match[3])
        root = instruction if match[1] else root
    if root is None:
        raise HLOError(f"%{name} has no ROOT")
    return Computation(name, instructions, root)


def _instruction(name: str, text: str) -> Instruction:
    """Of `shape opcode(operands), attributes`; a shape is a tuple of shapes, or has no spaces in it."""
    end = _items(text, 1)[1] + 1 if text.startswith("(") else text.find(" ")
    call = _CALL.match(text, end)
    if not call:
        raise HLOError(f"%{name}: no opcode: {text[:80]}")
    operands, close = _items(text, call.end())
    attributes = (item.partition("=") for item in _items(text, close + 1)[0])
    return Instruction(
        name,
        text[:end],
        call[1],
        tuple(operand.split(" ")[-1].removeprefix("%") for operand in operands),
        {key: value for key, _, value in attributes},
    )


def _items(text: str, start: int) -> tuple[list[str], int]:
    """What stands between commas, from here to the bracket that closes them or the end; and where that is."""
    items, depth, begin, end = [], 0, start, len(text)
    for token in _BRACKET.finditer(text, start):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth < 0:
            end = token.start()
            break
        if depth == 0 and token[0] == ",":
            items.append(text[begin : token.start()].strip())
            begin = token.end()
    items.append(text[begin:end].strip())
    return [item for item in items if item], end


def integers(text: str) -> list[int]:
    """Those in a text.

    >>> integers("{0,2}")
    [0, 2]
    """
    return [int(digits) for digits in re.findall(r"[0-9]{1,18}", text)]


def dims(shape: str) -> list[int]:
    """Of an array, or of the first one in a tuple.

    >>> dims("f32[8,64]{1,0:T(8,128)}"), dims("f32[]")
    ([8, 64], [])
    """
    match = _ARRAY.search(shape)
    return integers(match[2]) if match else []


def bytes_of(shape: str) -> int:
    """What an array takes, or a tuple of arrays; padding is not counted.

    >>> bytes_of("(bf16[8,64]{1,0}, (pred[3], s4[5]), token[])")
    1030
    """
    return sum(-(-_bits(kind) * math.prod(integers(sizes)) // 8) for kind, sizes in _ARRAY.findall(shape))


def arrays(shape: str) -> list[str]:
    """Those of a tuple, or the one, without their layouts.

    >>> arrays("(bf16[8,64]{1,0:T(8,128)}, s32[])")
    ['bf16[8,64]', 's32[]']
    """
    return [array[0] for array in _ARRAY.finditer(shape)]


def _bits(kind: str) -> int:
    """Of an element: its kind says so (f32, bf16, f8e4m3fn), but for pred, and a token has none."""
    return 8 if kind == "pred" else next(iter(integers(kind)), 0)
