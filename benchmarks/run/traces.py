"""Reads a profiler trace of a step into milliseconds by kind of kernel, beside `program.kernels`, which reads programs.

XLA names its own kernels after instructions; those of libraries have names of their own. The profiler writes Chrome's
format, gzipped: complete events ("X") with times in microseconds, on threads of processes that events "M" name.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.program.kernels import Kernel

IDLE, OTHER = "idle", "other"
LIBRARIES = {
    "attention": re.compile("fmha|flash|sdpa"),
    "matmul": re.compile("gemm|nvjet|cutlass|splitk|cublas|dot|convolution"),
    "copy": re.compile("memcpy|memset|copy|transpose|slice|concatenate"),
}
"""Names of kernels that are not named after an instruction of the program."""


class Span(NamedTuple):
    """A kernel that ran, and the instruction that it is of: of all kernels in a command buffer, the command buffer."""

    begin_us: float
    us: float
    name: str
    instruction: str


def milliseconds_by_kind(folder: Path, kernels: Sequence[Kernel], steps: int) -> dict[str, float]:
    """Milliseconds of a step by kind of kernel, and those in which none ran ("idle").

    Args:
        folder: of `jax.profiler.trace`.
        kernels: of the compiled step.
        steps: that were traced.
    """
    kinds = {_plain(each.name): each.kind for each in kernels}
    spans = sorted({span for path in folder.rglob("*.trace.json.gz") for span in _spans(path)})
    total, busy_until, idle = defaultdict[str, float](float), spans[0].begin_us if spans else 0.0, 0.0
    for span in spans:
        total[_kind(span, kinds)] += span.us
        idle += max(0.0, span.begin_us - busy_until)
        busy_until = max(busy_until, span.begin_us + span.us)
    return {kind: us / 1e3 / steps for kind, us in {**total, IDLE: idle}.items()}


def _spans(path: Path) -> Iterator[Span]:
    """Kernels of devices; on CPUs, instructions that its threads ran."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [each for each in events if each.get("name") == "process_name"]
    devices = {each["pid"] for each in named if "/device:GPU" in each["args"]["name"]}
    lanes = [each for each in events if each.get("name") == "thread_name" and each["pid"] in devices]
    streams = {(each["pid"], each["tid"]) for each in lanes if each["args"]["name"].startswith("Stream")}
    for each in events:
        if each.get("ph") != "X":
            continue
        instruction = each.get("args", {}).get("hlo_op", "")
        if (each["pid"], each["tid"]) in streams or (not devices and instruction):
            yield Span(each["ts"], each.get("dur", 0.0), each["name"], instruction)


def _kind(span: Span, kinds: dict[str, str]) -> str:
    found = kinds.get(_plain(span.instruction)) or kinds.get(_plain(span.name))
    return found or next((kind for kind, words in LIBRARIES.items() if words.search(span.name.lower())), OTHER)


def _plain(name: str) -> str:
    """The name of an instruction as that of its kernel."""
    return re.sub("[.-]", "_", name)
