"""What one device does in a step, as the compiled program says: what it sends, and what it multiplies."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.hlo import Computation, HLOError, Instruction, Module, bytes_of, dims, integers, parse, replica_groups
from strategies.mesh import AXES
from strategies.traffic import SENT

KINDS = tuple(SENT)
SEVERAL = "several"
"""In the place of an axis: groups that span more than one."""


def axis_of(axes: Sequence[str]) -> str:
    """The one axis, or `SEVERAL`."""
    return axes[0] if len(axes) == 1 else SEVERAL


@dataclass(frozen=True)
class Collective:
    """A collective of a step, between devices: one in groups of a single device communicates nothing, and is left out.

    Attributes:
        kind: one of `KINDS`.
        axes: of the mesh, in its order: those along which the devices of a group differ.
        times: executions in a step.
        in_loop: whether it stands in a loop.
        sent_bytes: by a device, each time, rounded down: the least that it can be (NCCL tests, doc/PERFORMANCE.md). Of
            operands of b bytes, in a group of n, all-gather b (n-1), reduce-scatter and all-to-all b (n-1)/n,
            all-reduce twice that, permute b.
    """

    kind: str
    axes: tuple[str, ...]
    times: int
    in_loop: bool
    sent_bytes: int

    @property
    def axis(self) -> str:
        """As a row's columns name it."""
        return axis_of(self.axes)


@dataclass(frozen=True)
class Work:
    """What a device does in some part of a step.

    Attributes:
        flops: two for each multiplication in dots and convolutions, none for anything else. Calls of cuBLAS and of
            cuDNN's attention count as the dots they stand for; nothing is halved for causality.
        told: of conditionals that are told how often their branches are taken while the loop around them runs, and of
            loops that are told how often they run once then: the trips of the loop around them, what is done in all of
            these, and what is done in one of them at most.
    """

    collectives: tuple[Collective, ...] = ()
    flops: int = 0
    told: tuple[tuple[int, "Work", "Work"], ...] = ()

    @property
    def sent_bytes(self) -> int:
        """By all collectives."""
        return sum(each.times * each.sent_bytes for each in self.collectives)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.collectives + other.collectives, self.flops + other.flops, self.told + other.told)

    def looped(self, trips: int) -> "Work":
        """The same in a loop."""
        own = Work(self.collectives, self.flops)._repeated(trips)
        for told_trips, in_all, in_one in self.told:  # another loop than was meant may go the other way each time
            own += in_all._repeated(1) if told_trips == trips else in_one._repeated(trips)
        return own

    def at_most(self) -> "Work":
        """Without a loop around it."""
        return sum((in_one for _, _, in_one in self.told), start=Work(self.collectives, self.flops))

    def _repeated(self, times: int) -> "Work":
        work = self.at_most()
        collectives = (replace(each, times=times * each.times, in_loop=True) for each in work.collectives)
        return Work(tuple(collectives), times * work.flops)


@dataclass(frozen=True)
class Program(Work):
    """All that it does in a step.

    Attributes:
        instructions: in the text, each once however often it runs, and those that cost nothing too.
        hash: 16 hexadecimal digits, of the text without names, sources, and how loops are cut up among the cores of a
            CPU: the same in every process.
    """

    instructions: int = 0
    hash: str = ""

    def as_row(self) -> dict[str, int | str]:
        """The columns of a record, always `ROW_KEYS`: bytes and executions are those of a step."""
        row: dict[str, int | str] = {
            "compiled.flops": self.flops,
            "compiled.instructions": self.instructions,
            "compiled.hash": self.hash,
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
        instructions=sum(len(computation.instructions) for computation in module.computations.values()),
        hash=hashlib.sha256(module.text.encode(errors="replace")).hexdigest()[:16],
    )


_OPCODES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_KINDS = dict(zip(_OPCODES, KINDS, strict=True))
_STRANGE = ("collective-broadcast", "ragged-all-to-all", "send", "recv")


class _Reader:
    """Adds up computations, each after those that it calls."""

    def __init__(self, module: Module, axes: Mapping[str, int]) -> None:
        self.module, self.axes = module, axes
        self.works: dict[str, Work] = {}
        self.chains: set[str] = set()

    def read(self, computation: Computation) -> None:
        """Add it to `works`."""
        work = Work()
        for instruction in computation.instructions.values():
            try:
                work += self._work(instruction, computation)
            except HLOError:
                raise
            except (ArithmeticError, LookupError, ValueError) as error:
                raise HLOError(f"%{instruction.name}: {instruction.opcode} cannot be read: {error!r}") from error
        self.works[computation.name] = work

    def _work(self, instruction: Instruction, where: Computation) -> Work:
        opcode = instruction.opcode.removesuffix("-start")
        if opcode.endswith(("-done", "-update")):  # it counted where it started
            return Work()
        if opcode in _STRANGE:
            raise HLOError(f"%{instruction.name}: a {opcode} is none of {', '.join(_OPCODES)}")
        if opcode in _KINDS:
            return self._collective(_KINDS[opcode], instruction, where)
        taken = integers(instruction.attributes.get("taken", ""))
        if opcode == "while" and taken:  # of a loop that runs once or not at all
            return _conditional([Work(), self.works[instruction.computation("body")].at_most()], taken)
        if opcode == "while":
            trips = _trips(instruction, where, self.module)
            body, condition = (self.works[instruction.computation(each)] for each in ("body", "condition"))
            return body.looped(trips) + condition.looped(trips + 1)
        if opcode == "conditional":
            branches = self._called(instruction, "branch_computations", "true_computation", "false_computation")
            return _conditional([branch.at_most() for branch in branches], taken)
        # What others apply makes one number of two.
        called = self._called(instruction, "to_apply" if opcode == "call" else "calls", "called_computations")
        return sum(called, start=Work(flops=_flops(instruction, where)))

    def _called(self, instruction: Instruction, *attributes: str) -> list[Work]:
        return [self.works[name] for each in attributes for name in instruction.computations(each)]

    def _collective(self, kind: str, instruction: Instruction, where: Computation) -> Work:
        if chain := re.search(r'chain_id="[0-9]+"', instruction.attributes.get("frontend_attributes", "")):
            if chain[0] in self.chains:  # TPUs weave one into several fusions, and spell it out in each
                return Work()
            self.chains.add(chain[0])
        devices = math.prod(self.axes.values())
        if kind == "permute":
            groups = [integers(pair) for pair in instruction["source_target_pairs"].split("},")]
        else:
            groups = replica_groups(instruction, devices)
        axes = _spanned(groups, self.axes)
        whole = math.prod(self.axes[axis] for axis in axes)
        for group in groups:
            if max(group, default=0) >= devices or (kind != "permute" and not len(group) == len(set(group)) == whole):
                mesh = ",".join(f"{axis}={size}" for axis, size in self.axes.items())
                raise ValueError(f"devices {group} make up no axes of the mesh {mesh}")
        if not axes:
            return Work()
        operand_bytes = sum(bytes_of(operand.shape) for operand in where.operands(instruction))
        return Work((Collective(kind, axes, 1, False, SENT[kind](operand_bytes, whole)),))


def _conditional(branches: Sequence[Work], taken: Sequence[int]) -> Work:
    """One of its branches at most; or each as often as it is taken, where that is told."""
    most = max(branches, key=lambda branch: (branch.sent_bytes, branch.flops))
    if not taken:
        return most
    in_all = Work()
    for branch, times in zip(branches, taken, strict=True):
        collectives = (replace(each, times=times * each.times) for each in branch.collectives)
        in_all += Work(tuple(each for each in collectives if each.times), times * branch.flops)
    return Work(told=((sum(taken), in_all, most),))


def _spanned(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the devices of any group differ; devices are numbered along the innermost axis first."""
    axes, stride = [], math.prod(mesh.values())
    for axis, size in mesh.items():
        stride //= size
        if any(len({device // stride % size for device in group}) > 1 for group in groups):
            axes.append(axis)
    return tuple(axes)


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


def _flops(instruction: Instruction, where: Computation) -> int:
    """Of an instruction by itself."""
    target, config = (instruction.attributes.get(each, "") for each in ("custom_call_target", "backend_config"))
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, where)
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


def _convolution_flops(convolution: Instruction, where: Computation) -> int:
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
