"""Reads traces of replayed steps, which `python -m benchmarks.compile --trace FILE` writes."""

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


class Trace(NamedTuple):
    """A replayed step: its case and devices, and the spans of each lane in order."""

    title: str
    lanes: Mapping[str, list[Span]]


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        RecordError: the file cannot be read, or is no trace of a replayed step.
    """
    document = read_json(path)
    facts = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(facts, dict) or facts.get("kind") != "replay":
        raise RecordError(f"{path} is no trace of a replayed step; {WRITTEN_BY}")
    lanes: dict[str, list[Span]] = {}
    try:
        for event in document["traceEvents"]:
            if event["name"] == "thread_name":
                lanes[event["args"]["name"]] = []
            elif event["ph"] == "X":
                lanes[event["cat"]].append(Span(_ms(event["ts"]), _ms(event["dur"])))
    except (LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path} has an event that is no span of a lane ({error!r}); {WRITTEN_BY}") from error
    if not any(lanes.values()):
        raise RecordError(f"{path} is the trace of a step in which nothing happens; {WRITTEN_BY}")
    return Trace(f"{facts.get('case')} on {facts.get('devices')}", {name: sorted(lanes[name]) for name in lanes})


def _ms(microseconds: Any) -> float:
    """Milliseconds; ValueError unless they are finite and at least 0."""
    if not 0 <= microseconds < math.inf:
        raise ValueError(f"{microseconds} microseconds")
    return microseconds / 1e3
