"""Reads traces of replayed and predicted steps, which `compile` and `advise` of benchmarks write with --trace."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from results.records.reading import RecordError, read_json

WRITTEN_BY = "write one with `python -m benchmarks.compile --topology v5e:4x4 --strategy fsdp --trace FILE`"


class Span(NamedTuple):
    """Something that happens in a lane."""

    begin_ms: float
    ms: float

    @property
    def end_ms(self) -> float:
        """When it ends."""
        return self.begin_ms + self.ms


KINDS = {"replay": "as replayed", "prediction": "as predicted"}
"""Kinds of traces, in words."""


class Trace(NamedTuple):
    """A step: its case and devices, which kind of trace it is, and the spans of each lane of each process in order."""

    title: str
    kind: str
    processes: Mapping[str, Mapping[str, list[Span]]]


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        RecordError: the file cannot be read, or is no trace of a replayed or predicted step.
    """
    document = read_json(path)
    facts = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(facts, dict) or facts.get("kind") not in KINDS:
        raise RecordError(f"{path} is no trace of a replayed or predicted step; {WRITTEN_BY}")
    lanes: dict[int, dict[str, list[Span]]] = {}
    names: dict[int, str] = {}
    try:
        for event in document["traceEvents"]:
            if event["name"] == "process_name":
                names[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                lanes.setdefault(event["pid"], {})[event["args"]["name"]] = []
            elif event["ph"] == "X":
                lanes[event["pid"]][event["cat"]].append(Span(_ms(event["ts"]), _ms(event["dur"])))
    except (LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path} has an event that is no span of a lane ({error!r}); {WRITTEN_BY}") from error
    if not any(spans for own in lanes.values() for spans in own.values()):
        raise RecordError(f"{path} is the trace of a step in which nothing happens; {WRITTEN_BY}")
    processes = {
        names.get(pid, str(pid)): {lane: sorted(spans) for lane, spans in own.items()} for pid, own in lanes.items()
    }
    return Trace(f"{facts.get('case')} on {facts.get('devices')}", KINDS[facts["kind"]], processes)


def _ms(microseconds: Any) -> float:
    """Milliseconds; ValueError unless they are finite and at least 0."""
    if not 0 <= microseconds < math.inf:
        raise ValueError(f"{microseconds} microseconds")
    return microseconds / 1e3
