"""Fragments of scheduled programs over arrays of 512 bytes, on GPUs of one host."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.program.collectives import OverlappedWork
from benchmarks.program.compiled import Program, read_program

MESH = {"data": 2, "fsdp": 4}
GROUPS = "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"
DOT = "%m = f32[8,8] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
H100S: Any = SimpleNamespace(
    axis_names=("data", "fsdp"), devices=np.array([SimpleNamespace(process_index=0)] * 8).reshape(2, 4)
)
"""A mesh over the GPUs of one host."""
MATMUL = OverlappedWork(2 * 8 * 8 * 16, 512 + 512 + 256)


def program(*lines: str, before: str = "", header: str = ", is_scheduled=true") -> Program:
    """A program over `%p`, 512 bytes of float32, whose last line is the root."""
    *others, root = ("%p = f32[8,16]{1,0} parameter(0)", *lines)
    main = "\n".join([*(f"  {line}" for line in others), f"  ROOT {root}"])
    return read_program(f"HloModule m{header}\n\n{before}ENTRY %main (p: f32[8,16]) -> f32[] {{\n{main}\n}}\n", MESH)


GATHER = f"%s = (f32[8,16], f32[32,16]) all-gather-start(%p), dimensions={{0}}, {GROUPS}"
DONE = "%d = f32[32,16] all-gather-done(%s)"
LOOP = f"""%body (s: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {{
  %t = (s32[], f32[8,16]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %p = f32[8,16] get-tuple-element(%t), index=1
  {GATHER}
  {DOT}
  {DONE}
  ROOT %u = (s32[], f32[8,16]) tuple(%i, %p)
}}

%condition (s: (s32[], f32[8,16])) -> pred[] {{
  %t = (s32[], f32[8,16]) parameter(0)
  ROOT %less = pred[] constant(true)
}}

"""
LOOPING = (
    "%i = s32[] constant(0)",
    "%t = (s32[], f32[8,16]) tuple(%i, %p)",
    "%w = (s32[], f32[8,16]) while(%t), condition=%condition, body=%body, "
    'backend_config={"known_trip_count":{"n":"7"}}',
)
"""Seven iterations of the loop."""
