"""The devices that talk to each other in a collective, as the text of a program spells them."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.program.hlo import HLOError, Instruction, integers


def replica_groups(instruction: Instruction, devices: int) -> list[list[int]]:
    """The devices of each group, in one of three spellings (XLA, hlo/ir/replica_group.cc and mesh_and_axis.cc).

    - `{{0,1},{2,3}}`, and `{}` for all devices
    - `[4,2]<=[2,4]T(1,0)`: four groups of two, of the devices as they come when counted up in 2 x 4 and transposed
    - `mesh['a'=2,'b'=4] {'b'}`: over axes of a mesh of its own. `'b':(2)2` would be half an axis: 'b' in 2 x 2, the
      latter. `, device_ids=([2,4]T(1,0))` or `, device_ids=(0,4,1,5,2,6,3,7)` in between tell another order.

    Raises:
        HLOError: another spelling, or one that does not fit so many devices.
    """
    text = instruction["replica_groups"]
    if "device_ids" in instruction.attributes:  # behind a comma, as if it were another attribute
        text += f" {instruction['device_ids']}"
    if match := re.fullmatch(r"\{(.*)\}", text):
        return [integers(group) for group in match[1].split("},")] if match[1] else [list(range(devices))]
    if match := re.fullmatch(r"\[([0-9]+),([0-9]+)\]<=(\S+)", text):
        return np.reshape(_order(match[3], devices), (int(match[1]), int(match[2]))).tolist()
    if match := re.fullmatch(r"mesh\[([^\]]*)\](?: \((.*)\))? \{(.*)\}", text):
        return _mesh_groups(match[1], _order(match[2] or f"[{devices}]", devices), match[3])
    raise HLOError(f"%{instruction.name}: replica_groups={text} cannot be read")


def _order(text: str, devices: int) -> list[int]:
    match = re.fullmatch(r"\[([0-9,]+)\](?:T\(([0-9,]+)\))?", text)
    if not match:
        return integers(text)
    sizes = integers(match[1])
    return np.arange(devices).reshape(sizes).transpose(integers(match[2] or "") or range(len(sizes))).ravel().tolist()


def _mesh_groups(mesh: str, order: Sequence[int], axes: str) -> list[list[int]]:
    """Devices are in a group that differ in nothing but their place along the axes."""
    sizes = {name: int(size) for name, size in re.findall(r"('[^']*')=([0-9]+)", mesh)}
    if math.prod(sizes.values()) != len(order):
        raise ValueError(f"the mesh takes {math.prod(sizes.values())}")
    places = []
    for name, before, part in re.findall(r"('[^']*')(?::\(([0-9]+)\)([0-9]+))?", axes):
        size = int(part or sizes[name])
        inner = math.prod(list(sizes.values())[list(sizes).index(name) + 1 :])
        places.append((sizes[name] // (int(before or 1) * size) * inner, size))
    groups = defaultdict(list)
    for position, device in enumerate(order):
        for stride, size in places:
            position -= position // stride % size * stride
        groups[position].append(device)
    return list(groups.values())
