"""Compile steps for devices that need not be present, and report memory, communication and least time.

meshmark compile --topology v5p:4x4x4 --strategy fsdp --preset gpt3-6.7b --dtype bfloat16 --remat full
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cases.row import Row
from benchmarks.cases.selection import selected
from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_file, short, write_then_print
from benchmarks.cli.tables import paragraph
from benchmarks.devices.chips import GB, GIB
from benchmarks.program.collectives import KINDS, SEVERAL
from benchmarks.program.explanations import OVERLAP_KINDS
from benchmarks.run.progress import progress, say_regularly
from benchmarks.run.record import Record
from benchmarks.run.remat import resolved_remats
from benchmarks.run.summary import MIB
from benchmarks.search.compiled import compiled_record
from benchmarks.simulate.queues import DEVICE_LANES, trace
from strategies.mesh import all_axes

Size = Callable[[float | None], str]
MEMORY_PARTS = ("parameter", "optimizer", "argument", "temp", "total")
"""Parts of memory that compilers report."""
NAMES = {"exposed": "exposed communication", "idle": "pipeline bubble"}
"""Parts of the time of a step in the columns -> their names on the page, where these differ."""


def case_report(row: Row) -> Iterator[str]:
    """Lines of the report on a case."""
    info: dict[str, Any] = row.extra_info
    where = f"{info['devices']} x {info['device_kind']}, {info['topology']}"
    yield f"{row.case}: {info['preset']}, {info['dtype']}, remat={info['remat']}, on {where}"
    if info["status"] != "ok":
        yield f"  {info['status']}: {info['reason']}"
    if (seconds := info["compile_seconds"]) is not None:
        options = f", with {info['compiler_options']}" if info["compiler_options"] else ""
        peak = info["memory.host_peak_rss_bytes"]
        host = f" with {peak / GIB:.1f} GiB of the host's memory" if peak else ""
        yield f"  compiled in {seconds:.1f} s{host}{options}"
        if info["compiled.unread"]:
            yield f"  not read: {info['compiled.unread']}; so FLOPs, bytes sent and times are unknown"
        prefix, held, sent = ("G", GIB, GB) if (info["memory.total_bytes"] or 0) >= GIB else ("M", MIB, 10**6)
        yield f"a device holds ({prefix}iB)       compiled     formula"
        yield from _memory(info, partial(in_unit, held))
        yield f"a device sends ({prefix}B a step)"
        yield from _communication(info, partial(in_unit, sent))
    yield from _times(info)


def _times(info: dict[str, Any]) -> Iterator[str]:
    """Lines on the time of a step: its replay and its roofline."""
    roofline = "compute", "memory", "network"
    for source, title, parts, most in (
        ("replay", "a step takes {:.1f} ms by the compiled schedule, at published figures", DEVICE_LANES, ""),
        ("roofline", "it takes at least {:.1f} ms, if all of it overlaps", roofline, "at most "),
    ):
        if (seconds := info[f"{source}.step_seconds"]) is not None:
            yield f"{source}: {title.format(1e3 * seconds)}"
            for part in parts:
                yield f"  {NAMES.get(part, part):21}{1e3 * info[f'{source}.{part}_seconds']:z9.1f} ms"
            rate, used = info[f"{source}.tokens_per_second_per_device"], info[f"{source}.model_flops_utilization"]
            yield f"  {most}{rate:,.0f} tokens/s a device, {used:.0%} MFU"


def _memory(info: dict[str, Any], size: Size) -> Iterator[str]:
    formulas = {"argument": info["predicted.argument_bytes"], "temp": info["predicted.temp_bytes"]}
    for part in MEMORY_PARTS:
        yield f"  {part:18}{size(info[f'memory.{part}_bytes'])}{size(formulas.get(part))}"
    if (capacity := info["chip.capacity_bytes"]) is not None:
        fits = "fits" if info["chip.fits"] else "DOES NOT FIT"
        yield f"  {'memory of a chip':18}{size(capacity)}   {info['chip.needed_bytes'] / capacity:.0%}: it {fits}"


def _communication(info: dict[str, Any], size: Size) -> Iterator[str]:
    for kind in KINDS:
        for axis in (*all_axes(), SEVERAL):
            if sent := info[f"compiled.sent_bytes.{kind}.{axis}"]:
                yield f"  {kind:18}{size(sent)}   over {axis}"
    yield f"  {'total':18}{size(info['compiled.sent_bytes'])}{size(info['predicted.sent_bytes'])} by formula"
    if info["overlap.text"] is not None:
        for overlap_kind, words in OVERLAP_KINDS.items():
            yield f"  {words:18}{size(info[f'overlap.sent_bytes.{overlap_kind}'])}"
    for title, column in (("each collective overlaps", "overlap.text"), ("the compiler changed", "rewrites.text")):
        if text := info[column]:
            yield from (f"what {title}", *(f"  {line}" for line in text.split("; ")))


def in_unit(unit_bytes: int, count: float | None) -> str:
    """A table cell of 12 characters; blank for None.

    >>> in_unit(1024, 1536), in_unit(1024, None)
    ('       1.500', '            ')
    """
    return f"{'' if count is None else f'{count / unit_bytes:.3f}':>12}"


def main(option: argparse.Namespace) -> int:
    """Print the report of each case. The exit status is 1 if any fails to compile, or if all are infeasible."""
    with refusing():
        cases = resolved_remats(selected(option).cases())
        if option.trace:
            require_traceable(cases)
            require_file(option.trace, "json")
    statuses = []
    for number, case in enumerate(cases, start=1):
        with say_regularly(partial(progress, number, len(cases), f"compiling {case}", None)):
            record = compiled_record(case)
        lines = paragraph(*case_report(record.as_row()))
        statuses.append(record.status)
        traced = trace_of(record) if option.trace else ""
        write_then_print({option.trace: traced} if traced else {}, "\n".join([*lines, ""]))
        if traced:
            print(f"{short(option.trace)}: open it at ui.perfetto.dev, or draw it: meshmark plot {short(option.trace)}")
        elif option.trace:
            print(f"no trace: {record.reason or 'the program was not replayed'}")
    return int(not {*statuses} <= {"ok", "oom", "infeasible"} or {*statuses} == {"infeasible"})


def require_traceable(cases: Sequence[Case]) -> None:
    """Check that there is one step to trace, and that it can be replayed."""
    if len(cases) > 1:
        raise ValueError(f"--trace is of one step, and {len(cases)} are selected; pass one --strategy and one --mesh")
    topology = cases[0].topology
    if topology and not topology.chip:
        raise ValueError(f"--trace: {topology} has no published figures to replay a step by; try v5e:4x4")


def trace_of(record: Record) -> str:
    """The trace of a replayed step; empty if it was not replayed."""
    replayed = record.estimate and record.estimate.replay
    if not replayed:
        return ""
    case, where = str(record.case), f"{record.case.mesh.size} x {record.device_kind}, {record.case.topology}"
    return json.dumps(trace("replay", case, where, {f"{case} on {where}, simulated": replayed.spans()}))
