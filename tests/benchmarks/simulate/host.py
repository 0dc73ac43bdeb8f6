"""A CPU host as a machine, and its machine file; stacks of packaged files."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from benchmarks.devices.chips import Chip
from benchmarks.devices.topology import CPU
from benchmarks.simulate.machine import START, Machine
from benchmarks.simulate.machines import checked_file, machine, made

MESHMARK, MEGATRON, MPT = (machine(name).stack for name in ("meshmark_tpus", "a100_megatron", "a100_fsdp"))
"""XLA's kernels and stages in lockstep; scores in memory, and the embedding and the head on the ends of a pipeline;
gathers and sums of gradients beside layers."""
HOST = Chip(
    platform=CPU,
    flops_per_second=2e11,
    memory_bytes=2**34,
    memory_bytes_per_second=4e11,
    link_bytes_per_second=2e10,
    torus_dims=0,
    ring_multiple=0,
    slice_chips=0,
    network_bytes_per_second=2e10,
    source="a test",
)
CONSTANTS = replace(START, matmul_dim=0.0)
MACHINE = Machine("host", HOST, MESHMARK, CONSTANTS, 0.1, "a test")
FILE = {
    "stack": MESHMARK.name,
    "devices": ["cpu"],
    "rules": {name: rule for name, rule in asdict(MESHMARK).items() if name != "name"},
    "specifications": vars(HOST),
    "constants": vars(CONSTANTS),
    "error": 0.1,
    "source": "a test",
}


def parsed(content: Mapping[str, Any], kind: str | None = None) -> Machine:
    """The machine of a file with this content, for a kind of devices."""
    return made("mine", checked_file(content, "mine"), kind)
