"""Reads traces of replayed and predicted steps, which `meshmark compile` and `search` write with --trace."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from strategies.files import shown
from strategies.schema import Amount, SchemaError, checked

WRITTEN_BY = "write one with `meshmark compile --topology v5e:4x4 --strategy fsdp --trace FILE`"


class Span(NamedTuple):
    """Something that happens in a lane."""

    begin_ms: float
    ms: float

    @property
    def end_ms(self) -> float:
        """When it ends."""
        return self.begin_ms + self.ms


PASSES, FORWARD = "passes", "forward passes"
"""The lane of a predicted step that names its passes, and that of its forward passes, which `read` makes of it."""
KINDS = {"replay": "simulated from the compiled schedule", "prediction": "as predicted"}
"""Kinds of traces, in words."""


class Trace(NamedTuple):
    """A step: its case and devices, which kind of trace it is, and the spans of each lane of each process in order."""

    title: str
    kind: str
    processes: Mapping[str, Mapping[str, list[Span]]]


class Facts(msgspec.Struct, frozen=True):
    """What the trace is of."""

    kind: Literal["replay", "prediction"]
    case: str
    devices: str


class Document(msgspec.Struct, frozen=True):
    """A trace in Chrome's format."""

    otherData: Facts
    traceEvents: list[dict[str, Any]]


class Label(msgspec.Struct, frozen=True):
    """What a process or a lane is called."""

    name: str


class Named(msgspec.Struct, frozen=True):
    """An event that names a process or a lane."""

    pid: int
    args: Label


class Occurred(msgspec.Struct, frozen=True):
    """An event that is a span, in microseconds."""

    name: str
    pid: int
    cat: str
    ts: Amount
    dur: Amount


def read(path: Path, content: Any) -> Trace:
    """Read a trace from the content of a file."""
    if not isinstance(content, dict) or "otherData" not in content:
        raise SchemaError(f"{shown(path)} is not a trace of a replayed or predicted step; {WRITTEN_BY}")
    document = checked(content, Document, shown(path))
    lanes: dict[int, dict[str, list[Span]]] = {}
    names: dict[int, str] = {}
    for number, event in enumerate(document.traceEvents):
        where, what = f"{shown(path)}: traceEvents[{number}]", event.get("name")
        if what in ("process_name", "thread_name"):
            label = checked(event, Named, where)
            if what == "process_name":
                names[label.pid] = label.args.name
            else:
                lanes.setdefault(label.pid, {})[label.args.name] = []
        elif event.get("ph") == "X":
            span = checked(event, Occurred, where)
            if span.cat not in lanes.get(span.pid, {}):
                raise SchemaError(f"{where} is in the lane {span.cat!r}, which no event before it names; {WRITTEN_BY}")
            spans = [lanes[span.pid][span.cat]]
            if span.cat == PASSES and span.name.startswith("F"):
                spans.append(lanes[span.pid].setdefault(FORWARD, []))
            for lane_spans in spans:
                lane_spans.append(Span(span.ts / 1e3, span.dur / 1e3))
    if not any(spans for own in lanes.values() for spans in own.values()):
        raise SchemaError(f"{shown(path)} is the trace of a step in which nothing happens; {WRITTEN_BY}")
    processes = {
        names.get(pid, str(pid)): {lane: sorted(spans) for lane, spans in own.items()} for pid, own in lanes.items()
    }
    facts = document.otherData
    return Trace(f"{facts.case} on {facts.devices}", KINDS[facts.kind], processes)
