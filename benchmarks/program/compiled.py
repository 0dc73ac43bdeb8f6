"""What one device does in a step according to the compiled program: collectives, FLOPs and memory traffic."""

import hashlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.program.collectives import KINDS, SEVERAL, as_reduce_scatter, collective, kind_of
from benchmarks.program.deadlock import concurrent_collectives
from benchmarks.program.flops import flops, unknown
from benchmarks.program.hbm import FUSIONS, MemoryTraffic
from benchmarks.program.hlo import Computation, HLOError, Instruction, Module, integers, parse
from benchmarks.program.work import Event, Part, Work, conditional, heaviest, scheduled
from strategies.mesh import all_axes

FLOATS = re.compile(r"\b(bf16|f[0-9]+(?:e[0-9a-z]+)?)\[")
"""Matches the dtype of a floating-point array, followed by its shape."""


@dataclass(frozen=True)
class Program(Work):
    """Work of one device in a step, and facts about the program's text.

    Attributes:
        instructions: number of instructions in the text; each counts once, however often it runs and even if it is
            free.
        hash: 16 hexadecimal digits of the normalised text, without names, sources, and the partitioning of loops among
            CPU cores. Equal in every process.
        dtypes: floating-point dtypes anywhere in the text, such as "bf16,f32".
        concurrent: pairs of instructions whose collectives may be in flight at the same time (deadlock.py).
        unread: opcodes, custom calls and instructions that could not be read, sorted; "" if all of it was read.
            Otherwise work is missing or guessed.
    """

    instructions: int = 0
    hash: str = ""
    dtypes: str = ""
    scheduled: bool = False
    concurrent: tuple[tuple[str, str], ...] = ()
    events: tuple[Event, ...] = field(default=(), repr=False)
    unread: str = ""

    def as_row(self) -> dict[str, int | str | None]:
        """The columns of a record, always `ROW_KEYS`. Bytes and executions are per step and device.

        If part of the program is unread, FLOPs, bytes and collectives are None.
        """
        row: dict[str, int | str | None] = {"compiled.flops": self.flops, "compiled.sent_bytes": self.sent_bytes}
        for kind in KINDS:
            of_kind = [each for each in self.collectives if each.kind == kind]
            for axis in (*all_axes(), SEVERAL):
                over = Work(tuple(each for each in of_kind if each.axis == axis))
                row[f"compiled.sent_bytes.{kind}.{axis}"] = over.sent_bytes
            for where, in_loop in (("outside_loops", False), ("in_loops", True)):
                times = sum(each.times for each in of_kind if each.in_loop == in_loop)
                row[f"compiled.collectives.{kind}.{where}"] = times
        return (dict.fromkeys(row) if self.unread else row) | {
            "compiled.instructions": self.instructions,
            "compiled.hash": self.hash,
            "compiled.dtypes": self.dtypes,
            "compiled.unread": self.unread or None,
        }

    def as_row_between(self, crossing: Sequence[str]) -> dict[str, int | str | None]:
        """The columns for communication between processes, always `BETWEEN_KEYS`.

        A collective over several axes counts as crossing processes if any of its axes does.
        """
        crossing_work = Work(tuple(each for each in self.collectives if set(each.axes) & set(crossing)))
        row: dict[str, int | str | None] = {"between_processes.sent_bytes": crossing_work.sent_bytes}
        for axis in (*all_axes(), SEVERAL):
            over = Work(tuple(each for each in crossing_work.collectives if each.axis == axis))
            row[f"between_processes.sent_bytes.{axis}"] = over.sent_bytes
        return (dict.fromkeys(row) if self.unread else row) | {"between_processes.axes": ",".join(crossing)}


ROW_KEYS = tuple(Program().as_row())
"""Columns of `Program.as_row`, for records without a program."""
BETWEEN_KEYS = tuple(Program().as_row_between(()))
"""Columns of `Program.as_row_between`."""


def read_program(text: str, axes: Mapping[str, int]) -> Program:
    """Parse the text of a compiled step (`jax.stages.Compiled.as_text()`) and add up its work.

    The body of a loop counts once per iteration. The branches of a conditional count as often as the program's
    annotations (`taken_7_2` scopes) say that they are taken, and likewise loops that run zero or one times. Of a
    conditional in a scope `heaviest`, one branch counts each time: the one that sends the most bytes and, among equals,
    has the most FLOPs. Asynchronous instructions count at their start.

    What is unknown or cannot be read is named in `Program.unread`: an opcode or custom call that flops.py does not
    list, a loop of unknown length, a conditional without annotation whose branches differ, replica groups that are not
    along mesh axes, which are given outermost first.
    """
    module = parse(text)
    reader = _Reader(module, axes)
    for computation in module.computations.values():
        reader.read(computation)
    work = reader.works[module.entry.name].outside_loops()
    return Program(
        work.collectives,
        work.flops,
        memory_bytes=work.memory_bytes,
        instructions=sum(len(computation.instructions) for computation in module.computations.values()),
        hash=hashlib.sha256(module.text.encode(errors="replace")).hexdigest()[:16],
        dtypes=",".join(sorted(set(FLOATS.findall(module.text)))),
        scheduled=module.scheduled,
        concurrent=tuple(concurrent_collectives(module)),
        events=reader.events[module.entry.name],
        unread=textwrap.shorten("; ".join(sorted(reader.unread)), 300, placeholder=" ..."),
    )


class _Reader:
    """Reads computations: their events in order, and the work of all of them. Callees are read before their callers."""

    def __init__(self, module: Module, axes: Mapping[str, int]) -> None:
        self.module, self.axes, self.memory = module, axes, MemoryTraffic(module)
        self.works: dict[str, Work] = {}
        self.events: dict[str, tuple[Event, ...]] = {}
        self.unread: set[str] = set()

    def read(self, computation: Computation) -> None:
        """Read a computation, and store the result in `works` and `events`, and what is not read in `unread`."""
        events = []
        for instruction in computation.instructions.values():
            self.unread |= {unknown(instruction)} - {""}
            event = Event(instruction.name, Work())
            try:
                event = self._event(instruction, computation)
            except HLOError as error:
                self.unread.add(str(error))
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                self.unread.add(f"%{instruction.name}: {instruction.opcode} cannot be read: {error!r}")
            events.append(event)
        events = scheduled(computation, events)
        self.works[computation.name] = sum((event.work for event in events), start=Work())
        self.events[computation.name] = tuple(
            each
            for instruction, event in zip(computation.instructions.values(), events, strict=True)
            for each in self._inlined(instruction, event)
            if not each.is_empty
        )

    def _inlined(self, instruction: Instruction, event: Event) -> Sequence[Event]:
        """The event of an instruction; of a call, the events of the computation that it calls."""
        if instruction.opcode != "call":
            return (event,)
        return [each for name in self._called(instruction, "to_apply") for each in self.events.get(name, ())]

    def _event(self, instruction: Instruction, computation: Computation) -> Event:
        if instruction.opcode == "while":
            return self._loop(instruction, computation)
        if instruction.opcode == "conditional":
            names = self._called(instruction, "branch_computations", "true_computation", "false_computation")
            branches = [(self.works[name].outside_loops(), self.events[name]) for name in names]
            works = {(work.collectives, work.flops) for work, _ in branches}
            if "taken" not in instruction.attributes and len(works) > 1:
                self.unread.add(f"%{instruction.name}: a conditional that does not say how often each branch is taken")
            return _conditional(instruction, branches)
        return Event(instruction.name, self._work(instruction, computation))

    def _loop(self, loop: Instruction, computation: Computation) -> Event:
        body, condition = (loop.computation(each) for each in ("body", "condition"))
        if "taken" in loop.attributes:  # it runs zero or one times
            once = self.works[body].outside_loops(), self.events[body]
            return _conditional(loop, [(Work(), ()), once])
        iterations = trips(loop, computation, self.module)
        if any(counted != iterations for counted, _, _ in self.works[body].annotated):
            self.unread.add(f"%{loop.name}: a loop of {iterations} iterations around counts of other loops")
        work = self.works[body].iterated(iterations) + self.works[condition].iterated(iterations + 1)
        asks = self.events[condition]
        return Event(loop.name, work, (Part((*asks, *self.events[body]), iterations), Part(asks)))

    def _work(self, instruction: Instruction, computation: Computation) -> Work:
        """Work of an instruction that is neither a loop nor a conditional, with the computations that it calls."""
        if instruction.opcode.endswith(("-done", "-update")):  # counted at its start
            return Work()
        memory_bytes = self.memory.bytes_moved(instruction, computation)
        if kind := kind_of(instruction):
            found = collective(kind, instruction, computation, self.axes)
            return Work((found,) if found else (), memory_bytes=memory_bytes)
        # In other instructions, `to_apply` is a scalar reduction.
        calls = "to_apply" if instruction.opcode.removesuffix("-start") == "call" else "calls"
        names = self._called(instruction, calls, "called_computations")
        called = sum((self.works[name] for name in names), start=Work())
        if instruction.opcode in FUSIONS:  # intermediate values of a fusion do not go to memory
            inside = self.module.computations[instruction.computation("calls")]
            collectives = tuple(as_reduce_scatter(instruction, inside, each) for each in called.collectives)
            called = replace(called, collectives=collectives, memory_bytes=0)
        return called + Work(flops=flops(instruction, computation), memory_bytes=memory_bytes)

    def _called(self, instruction: Instruction, *attributes: str) -> list[str]:
        return [name for each in attributes for name in instruction.computations(each)]


def _conditional(instruction: Instruction, branches: Sequence[tuple[Work, tuple[Event, ...]]]) -> Event:
    """The event of a conditional, by the work and the events of each branch."""
    works = [work for work, _ in branches]
    taken = integers(instruction.attributes.get("taken", ""))
    most = works.index(heaviest(works))
    parts = [
        Part(events, times=int(index == most), taken=(times, sum(taken)))
        for index, ((_, events), times) in enumerate(zip(branches, taken or [0] * len(works), strict=True))
    ]
    return Event(instruction.name, conditional(works, taken), tuple(parts))


def trips(loop: Instruction, where: Computation, module: Module) -> int:
    """Number of iterations of a loop, from the compiler's annotation or from its counter.

    The counter must start at a constant, be compared with a constant and grow by a constant.
    """
    known = loop.configured("known_trip_count", "n")
    if known is not None:
        return int(known)
    condition, body = (module.computations[loop.computation(each)] for each in ("condition", "body"))
    test = condition.root
    try:
        index = condition.producer_of_kind(test, 0, "get-tuple-element")["index"]
        update = body.producer_of_kind(body.root, int(index), "add")
        bounds = [
            where.producer_of_kind(where.operand(loop, 0), int(index), "constant"),
            condition.producer_of_kind(test, 1, "constant"),
            body.producer_of_kind(update, 1, "constant"),
        ]
        if test["direction"] != "LT" or body.producer_of_kind(update, 0, "get-tuple-element")["index"] != index:
            raise HLOError(f"%{test.name} does not compare the counter with a limit by LT")
    except HLOError as error:
        raise HLOError(f"%{loop.name}: a loop of unknown length: no known_trip_count, and {error}") from error
    return len(range(*(int(number.operands[0]) for number in bounds)))
