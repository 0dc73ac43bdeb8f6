"""What one device does in a step, as the compiled program says: what it sends, and what it multiplies."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.program.collectives import KINDS, SEVERAL, collective, kind_of, scattered
from benchmarks.program.deadlock import concurrent_collectives
from benchmarks.program.flops import flops
from benchmarks.program.hbm import Hbm
from benchmarks.program.hlo import Computation, HLOError, Instruction, Module, integers, parse
from benchmarks.program.schedule import in_schedule
from benchmarks.program.work import Work, conditional
from strategies.mesh import AXES

FLOATS = re.compile(r"\b(bf16|f[0-9]+(?:e[0-9a-z]+)?)\[")
"""Dtypes of floating-point arrays, before their shapes."""


@dataclass(frozen=True)
class Program(Work):
    """All that it does in a step.

    Attributes:
        instructions: in the text, each once however often it runs, and those that cost nothing too.
        hash: 16 hexadecimal digits, of the text without names, sources, and how loops are cut up among the cores of a
            CPU: the same in every process.
        dtypes: of floating-point arrays anywhere in the text, such as "bf16,f32".
        scheduled: whether the text says in which order instructions are run.
        concurrent: pairs of instructions whose collectives may be in flight together, see deadlock.py.
    """

    instructions: int = 0
    hash: str = ""
    dtypes: str = ""
    scheduled: bool = False
    concurrent: tuple[tuple[str, str], ...] = ()

    def as_row(self) -> dict[str, int | str]:
        """The columns of a record, always `ROW_KEYS`: bytes and executions are those of a step."""
        row: dict[str, int | str] = {
            "compiled.flops": self.flops,
            "compiled.instructions": self.instructions,
            "compiled.hash": self.hash,
            "compiled.dtypes": self.dtypes,
            "compiled.sent_bytes": self.sent_bytes,
        }
        for kind in KINDS:
            mine = [each for each in self.collectives if each.kind == kind]
            for axis in (*AXES, SEVERAL):
                over = Work(tuple(each for each in mine if each.axis == axis))
                row[f"compiled.sent_bytes.{kind}.{axis}"] = over.sent_bytes
            for place, in_loop in (("outside_loops", False), ("in_loops", True)):
                times = sum(each.times for each in mine if each.in_loop == in_loop)
                row[f"compiled.collectives.{kind}.{place}"] = times
        return row

    def as_row_between(self, crossing: Sequence[str]) -> dict[str, int | str]:
        """The columns of what is sent where axes cross from process to process, always `BETWEEN_KEYS`.

        A collective over several axes counts as one over such an axis if any of them is.
        """
        through = Work(tuple(each for each in self.collectives if set(each.axes) & set(crossing)))
        row: dict[str, int | str] = {
            "between_processes.axes": ",".join(crossing),
            "between_processes.sent_bytes": through.sent_bytes,
        }
        for axis in (*AXES, SEVERAL):
            over = Work(tuple(each for each in through.collectives if each.axis == axis))
            row[f"between_processes.sent_bytes.{axis}"] = over.sent_bytes
        return row


ROW_KEYS = tuple(Program().as_row())
"""The columns of `Program.as_row`, for a record that has no program."""
BETWEEN_KEYS = tuple(Program().as_row_between(()))
"""And of `Program.as_row_between`."""


def read_program(text: str, axes: Mapping[str, int]) -> Program:
    """Read `jax.stages.Compiled.as_text()` of a step on a mesh of these axes, outermost first, and their sizes.

    What a loop repeats counts as often as it runs. The branches of a conditional count as often as it is told that they
    are taken, and a loop as often as it is told that it runs once. Where nothing is told of a conditional, one branch
    counts each time: the one that sends the most bytes, and among equals the one with the most FLOPs. What is
    asynchronous counts where it starts.

    Raises:
        HLOError: a loop of unknown length, of which nothing is told; groups that make up no axes of the mesh; or text
            that is no such program.
    """
    module = parse(text)
    reader = _Reader(module, axes)
    for computation in module.computations.values():
        reader.read(computation)
    work = reader.works[module.entry.name].at_most()
    return Program(
        work.collectives,
        work.flops,
        memory_bytes=work.memory_bytes,
        instructions=sum(len(computation.instructions) for computation in module.computations.values()),
        hash=hashlib.sha256(module.text.encode(errors="replace")).hexdigest()[:16],
        dtypes=",".join(sorted(set(FLOATS.findall(module.text)))),
        scheduled=module.scheduled,
        concurrent=tuple(concurrent_collectives(module)),
    )


class _Reader:
    """Adds up computations, each after those that it calls."""

    def __init__(self, module: Module, axes: Mapping[str, int]) -> None:
        self.module, self.axes, self.memory = module, axes, Hbm(module)
        self.works: dict[str, Work] = {}

    def read(self, computation: Computation) -> None:
        """Add it to `works`."""
        works = []
        for instruction in computation.instructions.values():
            try:
                works.append(self._work(instruction, computation))
            except HLOError:
                raise
            except (ArithmeticError, LookupError, ValueError) as error:
                raise HLOError(f"%{instruction.name}: {instruction.opcode} cannot be read: {error!r}") from error
        self.works[computation.name] = sum(in_schedule(computation, works), start=Work())

    def _work(self, instruction: Instruction, where: Computation) -> Work:
        if instruction.opcode.endswith(("-done", "-update")):  # it counted where it started
            return Work()
        if kind := kind_of(instruction):
            found = collective(kind, instruction, where, self.axes)
            return Work((found,) if found else (), memory_bytes=self.memory.touched(instruction, where))
        taken = integers(instruction.attributes.get("taken", ""))
        if instruction.opcode == "while" and taken:  # of a loop that runs once or not at all
            return conditional([Work(), self.works[instruction.computation("body")].at_most()], taken)
        if instruction.opcode == "while":
            trips = _trips(instruction, where, self.module)
            body, condition = (self.works[instruction.computation(each)] for each in ("body", "condition"))
            return body.looped(trips) + condition.looped(trips + 1)
        if instruction.opcode == "conditional":
            branches = self._called(instruction, "branch_computations", "true_computation", "false_computation")
            return conditional([branch.at_most() for branch in branches], taken)
        # What others apply makes one number of two.
        calls = "to_apply" if instruction.opcode.removesuffix("-start") == "call" else "calls"
        called = sum(self._called(instruction, calls, "called_computations"), start=Work())
        if instruction.opcode == "fusion":  # what it does inside does not reach memory
            inside = self.module.computations[instruction.computation("calls")]
            collectives = tuple(scattered(instruction, inside, each) for each in called.collectives)
            called = replace(called, collectives=collectives, memory_bytes=0)
        return called + Work(flops=flops(instruction, where), memory_bytes=self.memory.touched(instruction, where))

    def _called(self, instruction: Instruction, *attributes: str) -> list[Work]:
        return [self.works[name] for each in attributes for name in instruction.computations(each)]


def _trips(loop: Instruction, where: Computation, module: Module) -> int:
    """As the compiler knows; or else the loop must count, from one constant to another, by a third."""
    if known := re.search(r'"known_trip_count":\{"n":"([0-9]{1,18})"\}', loop.attributes.get("backend_config", "")):
        return int(known[1])
    condition, body = (module.computations[loop.computation(each)] for each in ("condition", "body"))
    test = condition.root
    try:
        place = condition.origin(test, 0, "get-tuple-element")["index"]
        update = body.origin(body.root, int(place), "add")
        numbers = [
            where.origin(where.operand(loop, 0), int(place), "constant"),
            condition.origin(test, 1, "constant"),
            body.origin(update, 1, "constant"),
        ]
        if test["direction"] != "LT" or body.origin(update, 0, "get-tuple-element")["index"] != place:
            raise HLOError(f"%{test.name} does not ask for less than a limit")
    except HLOError as error:
        raise HLOError(f"%{loop.name}: a loop of unknown length: no known_trip_count, and {error}") from error
    return len(range(*(int(number.operands[0]) for number in numbers)))
