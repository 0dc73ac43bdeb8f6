"""Trace of a replayed or a predicted step in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing
show.

The format is described in "Trace Event Format" (Google, 2016). Times are in microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from benchmarks.simulate.program import LANES
from benchmarks.simulate.queues import Span


def trace(
    kind: Literal["replay", "prediction"], case: str, where: str, processes: Mapping[str, Sequence[Span]]
) -> dict[str, Any]:
    """The trace as a JSON value, with a process for each device or stage, and in it a thread for each lane.

    Args:
        kind: what kind of step it is.
        case: id of the case.
        where: the devices.
        processes: name of each process -> its spans.
    """
    return {
        "displayTimeUnit": "ms",
        "otherData": {"kind": kind, "case": case, "devices": where},
        "traceEvents": [
            event for pid, (name, spans) in enumerate(processes.items()) for event in _events(pid, name, spans)
        ],
    }


def _events(pid: int, process: str, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """The events of a process."""
    lanes = [*LANES, *sorted({span.lane for span in spans} - {*LANES})]
    names = [("process_name", 0, {"name": process}), ("process_sort_index", 0, {"sort_index": pid})]
    for index, lane in enumerate(lanes):
        names += [("thread_name", index, {"name": lane}), ("thread_sort_index", index, {"sort_index": index})]
    yield from ({"ph": "M", "pid": pid, "tid": index, "name": name, "args": args} for name, index, args in names)
    for span in spans:
        yield {
            "ph": "X",
            "pid": pid,
            "tid": lanes.index(span.lane),
            "name": span.name,
            "cat": span.lane,
            "ts": 1e6 * span.begin_seconds,
            "dur": 1e6 * span.seconds,
        }
