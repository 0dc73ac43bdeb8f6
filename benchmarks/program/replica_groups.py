"""Parser of replica groups: the sets of devices that communicate in a collective."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.program.hlo import HLOError, Instruction, integers


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
