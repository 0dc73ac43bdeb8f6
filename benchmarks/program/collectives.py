"""What an instruction that is a collective sends, and over which axes of the mesh."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.program.hlo import Computation, HLOError, Instruction, arrays, bytes_of, integers
from benchmarks.program.replica_groups import replica_groups
from strategies.costs.traffic import SENT

KINDS = tuple(SENT)
SEVERAL = "several"
"""In the place of an axis: groups that span more than one."""

OPCODES: Mapping[str, str] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
}
_STRANGE = ("collective-broadcast", "ragged-all-to-all", "send", "recv")


def axis_of(axes: Sequence[str]) -> str:
    """The one axis, or `SEVERAL`."""
    return axes[0] if len(axes) == 1 else SEVERAL


@dataclass(frozen=True)
class Meanwhile:
    """What is scheduled between the start of a collective and its end: FLOPs, and bytes of the device's memory.

    Collectives that go on at the same time have what is between them in common.
    """

    flops: int = 0
    memory_bytes: int = 0


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
        operand_bytes: that a device hands to it, each time; of an all-reduce those of its result, as it adds up.
        arrays: that these are of, without their layouts.
        source: the function that it stems from, and the scopes around it; "" where the compiler forgot.
        meanwhile: what the program does until it waits for it; None where it waits at once.
        decomposed: the kind that an all-reduce of the full arrays stands for: of an all-gather, with zeros where others
            hold something, or of a reduce-scatter, of which a part is taken. "" where it is what it says.
        padding_bytes: of the operands, that are there only to make equal parts.
        chain: the fusions that a TPU weaves it into are of one chain.
    """

    kind: str
    axes: tuple[str, ...]
    times: int
    in_loop: bool
    sent_bytes: int
    operand_bytes: int = field(default=0, compare=False)
    arrays: tuple[str, ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False)
    meanwhile: Meanwhile | None = field(default=None, compare=False)
    decomposed: str = field(default="", compare=False)
    padding_bytes: int = field(default=0, compare=False)
    chain: str = field(default="", compare=False)

    @property
    def axis(self) -> str:
        """As a row's columns name it."""
        return axis_of(self.axes)


def kind_of(instruction: Instruction) -> str | None:
    """Which collective it is, or starts; None if none.

    Raises:
        HLOError: one of another kind.
    """
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in _STRANGE:
        raise HLOError(f"%{instruction.name}: a {opcode} is none of {', '.join(OPCODES)}")
    return OPCODES.get(opcode)


def collective(kind: str, instruction: Instruction, where: Computation, mesh: Mapping[str, int]) -> Collective | None:
    """What it sends; None where there is nobody to talk to.

    Raises:
        ValueError: groups that make up no axes of the mesh.
    """
    devices = math.prod(mesh.values())
    if kind == "permute":
        groups = [integers(pair) for pair in instruction["source_target_pairs"].split("},")]
    else:
        groups = replica_groups(instruction, devices)
    axes = _spanned(groups, mesh)
    whole = math.prod(mesh[axis] for axis in axes)
    for group in groups:
        if max(group, default=0) >= devices or (kind != "permute" and not len(group) == len(set(group)) == whole):
            text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
            raise ValueError(f"devices {group} make up no axes of the mesh {text}")
    if not axes:
        return None
    operands = where.operands(instruction)
    # A TPU adds bfloat16 up to a float32 result in one all-reduce: partial sums are of the latter.
    shapes = [instruction.shape] if kind == "all_reduce" else [operand.shape for operand in operands]
    operand_bytes = sum(bytes_of(shape) for shape in shapes)
    chain = re.search(r'chain_id="([0-9]+)"', instruction.attributes.get("frontend_attributes", ""))
    return Collective(
        kind,
        axes,
        1,
        False,
        SENT[kind](operand_bytes, whole),
        operand_bytes,
        tuple(array for shape in shapes for array in arrays(shape)),
        instruction.attributes.get("op_name", "").strip('"'),
        Meanwhile() if chain or _starts(instruction) else None,
        _decomposed(kind, instruction),
        sum(bytes_of(each.shape) - bytes_of(where.operand(each, 0).shape) for each in operands if each.opcode == "pad"),
        chain[1] if chain else "",
    )


def scattered(fusion: Instruction, inside: Computation, found: Collective) -> Collective:
    """What is in a fusion: a reduce-scatter, if a TPU's says that it emits one for an all-reduce and a slice of it.

    So it spells those that it has to pad or to shift; others stand as they are. What is not sliced to a device's part,
    or has another emitter, is an all-reduce of the full array.
    """
    if found.kind != "all_reduce" or "AllReduceScatter" not in fusion.attributes.get("backend_config", ""):
        return found
    part = inside.under(inside.root, "bitcast")
    if part.opcode != "dynamic-slice" or inside.under(inside.operand(part, 0), "bitcast").opcode != "all-reduce":
        return found
    group, rest = divmod(found.operand_bytes, bytes_of(part.shape))
    if rest or SENT["all_reduce"](found.operand_bytes, group) != found.sent_bytes:
        return found
    sent_bytes = SENT["reduce_scatter"](found.operand_bytes, group)
    return replace(found, kind="reduce_scatter", sent_bytes=sent_bytes, decomposed="")


def _decomposed(kind: str, instruction: Instruction) -> str:
    """By its function, or by what it adds with where the compiler forgot that.

    XLA's AllGatherDecomposer makes an addition of its own, `add`, and its ReduceScatterDecomposer a clone of what the
    reduce-scatter added with; neither keeps the function's name.
    """
    if kind != "all_reduce":
        return ""
    if source := instruction.attributes.get("op_name"):
        stated = source.strip('"').rpartition("/")[2]
        return stated if stated in ("all_gather", "reduce_scatter") else ""
    adds = instruction.attributes.get("to_apply", "").removeprefix("%")
    if re.fullmatch(r"add(\.[0-9]+)?(\.clone)?", adds):
        return "all_gather"
    return "reduce_scatter" if adds.endswith(".clone") else ""


def _starts(instruction: Instruction) -> bool:
    """Whether it is waited for later. GPUs' programs spell all so, and mark those that they wait for at once."""
    return instruction.opcode.endswith("-start") and '"is_sync":true' not in instruction.attributes.get(
        "backend_config", ""
    )


def _spanned(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the devices of any group differ; devices are numbered along the innermost axis first."""
    axes, stride = [], math.prod(mesh.values())
    for axis, size in mesh.items():
        stride //= size
        if any(len({device // stride % size for device in group}) > 1 for group in groups):
            axes.append(axis)
    return tuple(axes)
