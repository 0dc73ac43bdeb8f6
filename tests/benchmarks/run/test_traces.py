"""A trace of a GPU is read into milliseconds by kind of kernel."""

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.program.kernels import Kernel
from benchmarks.run.traces import milliseconds_by_kind

GPU, STREAM, OPS = 1, 2, 3
NAMES = [
    {"ph": "M", "name": "process_name", "pid": GPU, "args": {"name": "/device:GPU:0"}},
    {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "/host:CPU"}},
    {"ph": "M", "name": "thread_name", "pid": GPU, "tid": STREAM, "args": {"name": "Stream #13(Compute)"}},
    {"ph": "M", "name": "thread_name", "pid": GPU, "tid": OPS, "args": {"name": "XLA Ops"}},
]


def ran(name: str, begin_us: float, us: float, instruction: str, tid: int = STREAM, pid: int = GPU) -> dict[str, Any]:
    """An event of a trace."""
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin_us, "dur": us, "args": {"hlo_op": instruction}}


def test_kernels_of_streams_are_counted_once(tmp_path: Path) -> None:
    """By their instruction, in a command buffer by their own name, else as a library names them; not other lanes."""
    events = [
        ran("loop_add_fusion", 0, 1000, "loop_add_fusion"),
        ran("nvjet_tst_128", 1000, 3000, "cublas-lt-matmul.2"),
        ran("loop_multiply_fusion_1", 6000, 500, "command_buffer"),
        ran("cudnn_generated_flash_fprop", 6500, 1500, "command_buffer"),
        ran("unheard_of", 7000, 500, "command_buffer"),
        ran("loop_add_fusion", 0, 1000, "loop_add_fusion", OPS),
        ran("loop_add_fusion", 0, 1000, "loop_add_fusion", pid=9),
    ]
    (tmp_path / "a.trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": NAMES + events}).encode()))
    kernels = [
        Kernel("loop_add_fusion", "pass", 1, 0),
        Kernel("cublas-lt-matmul.2", "matmul", 1, 0),
        Kernel("loop_multiply_fusion.1", "optimizer", 1, 0),
    ]
    expected = {"pass": 0.5, "matmul": 1.5, "optimizer": 0.25, "attention": 0.75, "other": 0.25, "idle": 1.0}
    assert milliseconds_by_kind(tmp_path, kernels, steps=2) == expected
