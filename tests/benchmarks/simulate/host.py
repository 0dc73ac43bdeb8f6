"""A CPU host as a machine, and its machine file."""

from dataclasses import replace

from benchmarks.devices.chips import Chip
from benchmarks.devices.topology import CPU
from benchmarks.simulate.machine import START, Machine
from benchmarks.simulate.stacks import MESHMARK

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
MACHINE = Machine("host", HOST, HOST.flops_per_second, 0, MESHMARK, CONSTANTS, 0.1, "a test")
FILE = {
    "stack": MESHMARK.name,
    "devices": ["cpu"],
    "specifications": vars(HOST),
    "constants": vars(CONSTANTS),
    "error": 0.1,
    "source": "a test",
}
