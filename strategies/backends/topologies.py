"""Number of devices of a topology, such as v5p:4x4x4."""

import math
import re

from strategies.arguments import require_instance
from strategies.infeasible import Infeasible

DEVICES_PER_CHIP = {
    **dict.fromkeys(("v4", "v5e", "v5p", "v6e"), 1),
    "tpu7x": 2,
    **dict.fromkeys(("v100", "a100_40gb", "a100_80gb", "h100", "h100_96gb", "h100_pcie", "h200", "cpu"), 1),
    **dict.fromkeys(("b200", "gb200", "b300", "gb300", "mi300x", "mi355x"), 1),
}
"""Devices per chip by the kind in a topology's name; a GPU and a virtual device are one each."""

EXAMPLE = "v5p:4x4x4"
"""An example of a topology, for help and messages."""


def devices_of(topology: str) -> int:
    """Number of devices of a topology, from its name only.

    >>> devices_of("v5p:4x4x4"), devices_of("h100:2x8"), devices_of("tpu7x:4x4x4")
    (64, 16, 128)
    """
    require_instance(topology, str, "the topology")
    kind, _, shape = topology.lower().partition(":")
    if kind not in DEVICES_PER_CHIP or not re.fullmatch(r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5})*", shape):
        kinds = ", ".join(DEVICES_PER_CHIP)
        raise Infeasible(f"topology {topology!r} cannot be read; write one as {EXAMPLE}, of the kinds {kinds}")
    return DEVICES_PER_CHIP[kind] * math.prod(map(int, shape.split("x")))
