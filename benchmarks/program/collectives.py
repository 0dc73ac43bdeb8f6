"""Collectives of a compiled program: what each one sends, and over which mesh axes."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.program.hlo import Computation, HLOError, Instruction, bytes_of, integers
from strategies.core.traffic import SENT, Bytes

KINDS = tuple(SENT)
SEVERAL = "several"
"""Name used as the axis of collectives whose groups span several mesh axes."""

OPCODES: Mapping[str, str] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
}


def axis_of(axes: Sequence[str]) -> str:
    """The only axis, or `SEVERAL`."""
    return axes[0] if len(axes) == 1 else SEVERAL


@dataclass(frozen=True)
class OverlappedWork:
    """Work that is scheduled between the start of a collective and its end.

    Collectives in flight at the same time each count the work that they share.
    """

    flops: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Collective:
    """A collective between devices, as executed in a step.

    Collectives in groups of one device communicate nothing and are left out.

    Attributes:
        axes: mesh axes along which the devices of a group differ, in the mesh's order. A group may be some of the
            devices along an axis.
        sent_bytes: bytes that a device sends per execution, exactly. This is the lower bound (NCCL tests,
            doc/PERFORMANCE.md): for operands of b bytes in a group of n, all-gather b (n-1), reduce-scatter and
            all-to-all b (n-1)/n, all-reduce twice that, permute b.
        operand_bytes: bytes of a device's operands per execution. For an all-reduce, bytes of its result, which has the
            dtype of the accumulation.
        overlapped: work scheduled until the program waits for it; None if the program waits at once.
        chain: id of the chain of fusions that a TPU program splits this collective over; "" if it is not split.
        direction: 1 for a permute by which most devices send to a later one, -1 to an earlier one; 0 for other kinds.
    """

    kind: str
    axes: tuple[str, ...]
    times: int
    in_loop: bool
    sent_bytes: Bytes
    operand_bytes: int = field(default=0, compare=False)
    overlapped: OverlappedWork | None = field(default=None, compare=False)
    chain: str = field(default="", compare=False)
    direction: int = field(default=0, compare=False)

    @property
    def axis(self) -> str:
        """Its axis in the names of a record's columns: the only axis, or `SEVERAL`."""
        return axis_of(self.axes)


def kind_of(instruction: Instruction) -> str | None:
    """Kind of collective that an instruction is or starts; None if it is no collective that is counted."""
    return OPCODES.get(instruction.opcode.removesuffix("-start"))


def collective(
    kind: str, instruction: Instruction, computation: Computation, mesh: Mapping[str, int]
) -> Collective | None:
    """Describe the collective that an instruction starts, for one execution outside of loops; None if its groups have
    one device each. Mesh axes are given outermost first.
    """
    devices = math.prod(mesh.values())
    if kind == "permute":
        groups = [integers(pair) for pair in instruction["source_target_pairs"].split("},")]
    else:
        groups = replica_groups(instruction, devices)
    axes = _spanned(groups, mesh)
    group_size = _group_size(kind, groups, mesh, axes)
    for group in groups:
        if max(group, default=0) >= devices or (kind != "permute" and not len(group) == len(set(group)) == group_size):
            text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
            raise ValueError(f"devices {group} do not form a group along axes of the mesh {text}")
    if not axes:
        return None
    operands = computation.operands(instruction)
    # An all-reduce of a TPU may take bfloat16 and return float32: its partial sums, which are sent, are float32.
    shapes = [instruction.result] if kind == "all_reduce" else [operand.shape for operand in operands]
    if instruction.opcode.startswith("ragged"):
        # Of the rows before and after it, the fewer are those that there are; the others have room for any routing.
        shapes = [min(shapes[:2], key=bytes_of)]
    operand_bytes = sum(bytes_of(shape) for shape in shapes)
    chain = re.search(r'chain_id="([0-9]+)"', instruction.attributes.get("frontend_attributes", ""))
    upwards = kind == "permute" and sum(target > source for source, target in groups) * 2 >= len(groups)
    # In GPU programs, all collectives have a start instruction, and synchronous ones are marked.
    is_start = instruction.opcode.endswith("-start")
    is_asynchronous = is_start and not instruction.configured("collective_backend_config", "is_sync")
    return Collective(
        kind,
        axes,
        times=1,
        in_loop=False,
        sent_bytes=SENT[kind](operand_bytes, group_size),
        operand_bytes=operand_bytes,
        overlapped=OverlappedWork() if chain or is_asynchronous else None,
        chain=chain[1] if chain else "",
        direction=0 if kind != "permute" else 1 if upwards else -1,
    )


def as_reduce_scatter(fusion: Instruction, inside: Computation, candidate: Collective) -> Collective:
    """Return the collective of a fusion; as a reduce-scatter, if the fusion implements one.

    A TPU program expresses reduce-scatters that it has to pad or shift as a fusion of an all-reduce and a slice, with
    an emitter named AllReduceScatter. Other reduce-scatters are instructions. If the slice is not the device's part, or
    the emitter is another one, the collective is an all-reduce of the full array.
    """
    emitter = fusion.configured("collective_algorithm_config", "emitter") if candidate.kind == "all_reduce" else None
    if "AllReduceScatter" not in (emitter or ""):
        return candidate
    part = inside.unwrap(inside.root, "bitcast")
    if part.opcode != "dynamic-slice" or inside.unwrap(inside.operand(part, 0), "bitcast").opcode != "all-reduce":
        return candidate
    group, rest = divmod(candidate.operand_bytes, bytes_of(part.shape))
    if rest or SENT["all_reduce"](candidate.operand_bytes, group) != candidate.sent_bytes:
        return candidate
    sent_bytes = SENT["reduce_scatter"](candidate.operand_bytes, group)
    return replace(candidate, kind="reduce_scatter", sent_bytes=sent_bytes)


def _group_size(kind: str, groups: Sequence[Sequence[int]], mesh: Mapping[str, int], axes: Sequence[str]) -> int:
    """Devices of a group: all along the axes, or in a gather neighbours, as those that share a head of keys."""
    whole = math.prod(mesh[axis] for axis in axes)
    if kind != "all_gather" or len(axes) != 1:
        return whole
    names, size = list(mesh), len(groups[0])
    stride = math.prod(mesh[name] for name in names[names.index(axes[0]) + 1 :])
    neighbours = all(
        [*group] == [*range(group[0], group[0] + size * stride, stride)] and group[0] // stride % size == 0
        for group in groups
    )
    return size if neighbours and whole % size == 0 else whole


def _spanned(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes along which the devices of any group differ.

    Devices are numbered with the innermost axis varying fastest.
    """
    axes, stride = [], math.prod(mesh.values())
    for axis, size in mesh.items():
        stride //= size
        if any(len({device // stride % size for device in group}) > 1 for group in groups):
            axes.append(axis)
    return tuple(axes)


def replica_groups(instruction: Instruction, devices: int) -> list[list[int]]:
    """Device ids of each group, from one of three notations (XLA, hlo/ir/replica_group.cc and mesh_and_axis.cc).

    - `{{0,1},{2,3}}`, and `{}` for one group of all devices
    - `[4,2]<=[2,4]T(1,0)`: four groups of two; the ids are those of arange(8) reshaped to 2 x 4 and transposed
    - `mesh['a'=2,'b'=4] {'b'}`: along axes of the mesh that is given. `'b':(2)2` is a sub-axis: the second part of
      'b' split into 2 x 2. `, device_ids=([2,4]T(1,0))` or `, device_ids=(0,4,1,5,2,6,3,7)` in between gives another
      order.
    """
    text = instruction["replica_groups"]
    if "device_ids" in instruction.attributes:  # the parser reads the text after the comma as another attribute
        text += f" {instruction['device_ids']}"
    if match := re.fullmatch(r"\{(.*)\}", text):
        return [integers(group) for group in match[1].split("},")] if match[1] else [list(range(devices))]
    if match := re.fullmatch(r"\[([0-9]+),([0-9]+)\]<=(\S+)", text):
        return np.reshape(_order(match[3], devices), (int(match[1]), int(match[2]))).tolist()
    if match := re.fullmatch(r"mesh\[([^\]]*)\](?: \((.*)\))? \{(.*)\}", text):
        return _mesh_groups(match[1], _order(match[2] or f"[{devices}]", devices), match[3])
    raise HLOError(f"%{instruction.name}: replica_groups={text} cannot be read")


def _order(text: str, devices: int) -> list[int]:
    """Device ids in mesh order."""
    match = re.fullmatch(r"\[([0-9,]+)\](?:T\(([0-9,]+)\))?", text)
    if not match:
        return integers(text)
    sizes = integers(match[1])
    return np.arange(devices).reshape(sizes).transpose(integers(match[2] or "") or range(len(sizes))).ravel().tolist()


def _mesh_groups(mesh: str, order: Sequence[int], axes: str) -> list[list[int]]:
    """Devices are in the same group if they differ only in their positions along `axes`."""
    sizes = {name: int(size) for name, size in re.findall(r"('[^']*')=([0-9]+)", mesh)}
    if math.prod(sizes.values()) != len(order):
        raise ValueError(f"the mesh of the replica groups has {math.prod(sizes.values())} devices, not {len(order)}")
    strides = []
    for name, before, part in re.findall(r"('[^']*')(?::\(([0-9]+)\)([0-9]+))?", axes):
        size = int(part or sizes[name])
        inner = math.prod(list(sizes.values())[list(sizes).index(name) + 1 :])
        strides.append((sizes[name] // (int(before or 1) * size) * inner, size))
    groups = defaultdict(list)
    for position, device in enumerate(order):
        for stride, size in strides:
            position -= position // stride % size * stride
        groups[position].append(device)
    return list(groups.values())
