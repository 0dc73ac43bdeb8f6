"""Trace of a replayed step in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing show.

The format is described in "Trace Event Format" (Google, 2016). Times are in microseconds.
"""

from typing import Any

from benchmarks.explain.replay import PARTS, Replay


def trace(case: str, where: str, replayed: Replay) -> dict[str, Any]:
    """The trace as a JSON value, with a thread for each lane.

    Args:
        case: id of the case.
        where: the devices.
        replayed: the step.
    """
    spans = list(replayed.all_spans())
    lanes = [*PARTS, *sorted({span.lane for span in spans} - {*PARTS})]
    names = [("process_name", 0, {"name": f"{case} on {where}, as replayed"})]
    for index, lane in enumerate(lanes):
        names += [("thread_name", index, {"name": lane}), ("thread_sort_index", index, {"sort_index": index})]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"kind": "replay", "case": case, "devices": where},
        "traceEvents": [
            *({"ph": "M", "pid": 0, "tid": index, "name": name, "args": args} for name, index, args in names),
            *(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": lanes.index(span.lane),
                    "name": span.name,
                    "cat": span.lane,
                    "ts": 1e6 * span.begin_seconds,
                    "dur": 1e6 * span.seconds,
                }
                for span in spans
            ),
        ],
    }
