"""Parser of optimised HLO text into computations and instructions. compiled.py interprets them.

    %name (parameters) -> shape {
      ROOT %name = shape opcode(operands), attribute=value, attribute=value
    }

Computations come before their callers (XLA, HloModule::Print). Operands are printed without shapes.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class HLOError(ValueError):
    """The text cannot be parsed or interpreted; the message names the instruction and the problem."""


@dataclass(frozen=True)
class Instruction:
    """`name = shape opcode(operands), attributes`.

    The operands of a constant are its value, and those of a parameter its index. Of the metadata, `op_name` is kept as
    an attribute: the traced function that the instruction comes from, with its scopes.
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
        """Name of the computation that an attribute refers to; HLOError if the attribute is missing."""
        return self[attribute].removeprefix("%")

    def computations(self, attribute: str) -> list[str]:
        """Names of all computations that an attribute refers to; none if it is missing."""
        return re.findall(r"%([^\s,{}]+)", self.attributes.get(attribute, ""))

    @property
    def result(self) -> str:
        """Shape of the result: of `((operands), result, context)`, as of a start instruction, that part alone."""
        is_start = self.opcode.endswith("-start") and self.shape.startswith("((")
        return _items(self.shape, 1)[0][1] if is_start else self.shape

    @property
    def target(self) -> str:
        """What a custom call calls; "" for other instructions."""
        return self.attributes.get("custom_call_target", "").strip('"')

    def configured(self, *path: str) -> Any:
        """A field of the compiler's `backend_config`, by its path; None if it is absent."""
        text = self.attributes.get("backend_config", "{}")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HLOError(f"%{self.name}: backend_config of {self.opcode} is not JSON: {text[:40]}") from error
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class Computation:
    """Instructions by name, in program order."""

    name: str
    instructions: Mapping[str, Instruction]
    root: Instruction

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """The instruction that produces an operand."""
        name = instruction.operands[index] if index < len(instruction.operands) else f"operand {index}"
        if name not in self.instructions:
            raise HLOError(f"%{instruction.name}: no {name} in %{self.name}")
        return self.instructions[name]

    def producer_of_kind(self, instruction: Instruction, index: int, opcode: str) -> Instruction:
        """The instruction that produces an operand, ignoring copies."""
        producer = self.unwrap(self.operand(instruction, index), "copy")
        if producer.opcode != opcode:
            raise HLOError(f"%{instruction.name}: operand {index} is a {producer.opcode}, not a {opcode}")
        return producer

    def unwrap(self, instruction: Instruction, *opcodes: str) -> Instruction:
        """Follow first operands past these opcodes, such as copy or bitcast, and return the first other instruction."""
        for _ in self.instructions:
            if instruction.opcode not in opcodes:
                return instruction
            instruction = self.operand(instruction, 0)
        raise HLOError(f"%{instruction.name}: a {instruction.opcode} of itself")

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that produce all operands."""
        return [self.operand(instruction, index) for index in range(len(instruction.operands))]


@dataclass(frozen=True)
class Module:
    """A parsed program.

    Attributes:
        text: normalised text, without names, sources, and the partitioning of loops among CPU cores. A conditional in a
            scope `taken_7_2` has the attribute `taken={7,2}`: how often each branch is taken over all iterations of the
            loop around it. For a loop in such a scope: how often it runs zero times, and how often once. A conditional
            in a scope `heaviest` has the attribute without counts: its heaviest branch counts.
        computations: by name; callees come before their callers.
    """

    scheduled: bool
    text: str
    computations: Mapping[str, Computation]
    entry: Computation


_NOISE = re.compile(  # metadata and annotations that do not affect what is computed
    r', metadata=\{(?:[^"{}]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}'
    r"|/\*index=[0-9]+\*/"
    r'|, backend_config=\{"outer_dimension_partitions":\[[^\]]*\]\}'
    r'|,"outer_dimension_partitions":\[[^\]]*\]'
    r'|fingerprint_before_lhs="[0-9a-f]*"'
)
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n((?:.*\n)*?)\}")
"""Metadata of a Pallas kernel, which is printed on lines of its own."""
_TAKEN = re.compile(r'/taken_([0-9_]+)/(?:cond|while)"|/heaviest/cond"')
_OP_NAME = re.compile(r', (op_name="(?:[^"\\]|\\.)*")')
_COMPUTATION = re.compile(r"(ENTRY )?%([^\s(]+) \(.*\{")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%(\S+) = (.*)")
_CALL = re.compile(r" ([a-z][a-z0-9-]*)\(")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,]*)\]")


def parse(text: str) -> Module:
    """Parse `jax.stages.Compiled.as_text()`."""
    text = _KERNEL_METADATA.sub(lambda metadata: metadata[0].replace("\n", ""), text)
    header, *lines = _NOISE.sub(_kept_metadata, text).split("\n")
    normalised, computations, entry = [header.partition(",")[2]], {}, ""
    rest = iter(lines)
    for line in rest:
        if match := _COMPUTATION.fullmatch(line):
            name = match[2]
            body = _body(name, rest)
            computations[name] = _computation(name, body)
            normalised += [f"%{name}", *(_OP_NAME.sub("", line) for line in body)]
            entry = name if match[1] else entry
    if not entry:
        raise HLOError("no ENTRY computation")
    text = _with_numbers("\n".join(normalised))
    return Module("is_scheduled=true" in header, text, computations, computations[entry])


def _kept_metadata(noise: re.Match[str]) -> str:
    """The part of a metadata match that is kept: `op_name`, and the `taken` counts in its scopes."""
    name, taken = re.search(r'[{ ](op_name="(?:[^"\\]|\\.)*")', noise[0]), _TAKEN.search(noise[0])
    taken_attribute = f", taken={{{(taken[1] or '').replace('_', ',')}}}" if taken else ""
    return f"{taken_attribute}, {name[1]}" if name else taken_attribute


def _with_numbers(text: str) -> str:
    """Replace names by numbers in order of appearance.

    Names depend on functions, arguments and code that was optimised away.
    """
    numbers: dict[str, int] = {}
    return re.sub(r"%[^\s,(){}]+", lambda name: f"%{numbers.setdefault(name[0], len(numbers))}", text)


def _body(name: str, lines: Iterable[str]) -> list[str]:
    """Lines up to the bracket that closes a computation."""
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
            raise HLOError(f"%{name}: not an instruction: {line[:80]}")
        instruction = instructions[match[2]] = _instruction(match[2], match[3])
        root = instruction if match[1] else root
    if root is None:
        raise HLOError(f"%{name} has no ROOT")
    return Computation(name, instructions, root)


def _instruction(name: str, text: str) -> Instruction:
    """Parse `shape opcode(operands), attributes`. A shape is a tuple of shapes, or a string without spaces."""
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
    """Split at top-level commas from `start` to the closing bracket or the end.

    Returns the items, and the position of that end.
    """
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
    """All integers in a string.

    >>> integers("{0,2}")
    [0, 2]
    """
    return [int(digits) for digits in re.findall(r"[0-9]{1,18}", text)]


def dims(shape: str) -> list[int]:
    """Dims of an array shape, or of the first array of a tuple.

    >>> dims("f32[8,64]{1,0:T(8,128)}"), dims("f32[]")
    ([8, 64], [])
    """
    match = _ARRAY.search(shape)
    return integers(match[2]) if match else []


def bytes_of(shape: str) -> int:
    """Bytes of an array shape or of a tuple of them, without padding of tiles.

    >>> bytes_of("(bf16[8,64]{1,0}, (pred[3], s4[5]), token[])")
    1030
    """
    return sum(-(-_bits(dtype) * math.prod(integers(sizes)) // 8) for dtype, sizes in _ARRAY.findall(shape))


def _bits(dtype: str) -> int:
    """Bits per element. The dtype's name contains them (f32, bf16, f8e4m3fn), except for pred; a token has none."""
    return 8 if dtype == "pred" else next(iter(integers(dtype)), 0)
