"""The queue simulator: a device works through events in order, beside the queues of its links and of its host.

An event takes the device's own queue, or others: of the links that a collective uses, or of the host that launches
kernels. The device goes on while other queues work, and waits for an event of theirs where a `Wait` says so. Time that
it waits counts as that event's part of the step. Each queue takes its events in the order in which they are issued.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Parts = Mapping[str, float]
"""Seconds by what they are spent on."""
COMPUTE, MEMORY, EXPOSED, IDLE = DEVICE_LANES = "compute", "memory", "exposed", "idle"
"""Lanes of the device's own queue: bound by compute, bound by memory, waiting for a collective, waiting for a stage."""


class Event(NamedTuple):
    """Something that takes time, on the device's own queue or on other queues, such as links, all at once.

    Attributes:
        part: what the device's seconds for it are spent on, or those for which it waits for other queues.
        labels: names by which a `Wait` refers to an event of other queues; empty if the device waits at once.
        name: in a picture; by default `part`.
    """

    part: str
    seconds: float
    queues: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    name: str = ""


LAST = Event(EXPOSED, 0.0, name="the last collectives")
"""What the device waits for at the end of a step."""


class Wait(NamedTuple):
    """The device waits for all events with a label; without one, for all queues."""

    label: str = ""


class Loop(NamedTuple):
    """Items that are repeated."""

    items: "Sequence[Item]"
    times: int


Item = Event | Wait | Loop


@dataclass(frozen=True)
class Span:
    """An event or a wait. The lane is what the device's own queue spends its time on, or the name of another queue."""

    lane: str
    name: str
    begin_seconds: float
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """A simulated step: the device's seconds, which add up to the step, and for the spans the items."""

    parts: Parts
    items: tuple[Item, ...] = field(default=(), repr=False)

    @property
    def step_seconds(self) -> float:
        """Time of the step."""
        return sum(self.parts.values())

    def spans(self) -> list[Span]:
        """What happens when, in all lanes and in every iteration of loops."""
        queues = Queues(records_spans=True)
        queues.run(self.items)
        return queues.spans


def added(*several: Parts) -> dict[str, float]:
    """The sums of parts of the same name.

    >>> added({"head": 1.0}, {"head": 2.0, "fixed": 3.0})
    {'head': 3.0, 'fixed': 3.0}
    """
    total: dict[str, float] = {}
    for parts in several:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def scaled(parts: Parts, times: float) -> dict[str, float]:
    """Parts that are repeated."""
    return {name: seconds * times for name, seconds in parts.items()}


class Queues:
    """A device with its queues: the seconds since the start of the step, what they were spent on, when each other queue
    is free, and what has happened, if spans are recorded; then every iteration of a loop is simulated.
    """

    def __init__(self, *, records_spans: bool = False) -> None:
        self.now = 0.0
        self.parts: dict[str, float] = {}
        self.free: dict[str, float] = {}
        self.records_spans = records_spans
        self.spans: list[Span] = []

    def run(self, items: Iterable[Item]) -> None:
        """Work through items in order."""
        ends_by_label: dict[str, tuple[float, Event]] = {}
        for item in items:
            if isinstance(item, Loop):
                self._loop(item)
            elif isinstance(item, Wait):
                self._wait(*(ends_by_label[item.label] if item.label else (max(self.free.values(), default=0.0), LAST)))
            elif not item.queues:
                self._spend(item, item.seconds)
            else:
                begin = max(self.now, *(self.free.get(queue, 0.0) for queue in item.queues))
                end = begin + item.seconds
                for queue in item.queues:
                    self.free[queue] = end
                    self._record(queue, item, begin, item.seconds)
                if not item.labels:
                    self._wait(end, item)
                for label in item.labels:
                    if label not in ends_by_label or ends_by_label[label][0] < end:
                        ends_by_label[label] = end, item

    def _wait(self, end: float, event: Event) -> None:
        if end > self.now:
            self._spend(event, end - self.now)

    def _spend(self, event: Event, seconds: float) -> None:
        if seconds:
            self._record(event.part, event, self.now, seconds)
            self.parts[event.part] = self.parts.get(event.part, 0.0) + seconds
            self.now += seconds

    def _record(self, lane: str, event: Event, begin: float, seconds: float) -> None:
        if self.records_spans:
            self.spans.append(Span(lane, event.name or event.part, begin, seconds))

    def _loop(self, loop: Loop) -> None:
        """Run iterations until one begins with the same queues busy as the one before did: all further are alike."""
        before = None
        for left in range(loop.times, 0, -1):
            busy = {queue: round(free - self.now, 12) for queue, free in self.free.items() if free > self.now}
            begin = self.now, dict(self.parts), busy
            if before and busy == before[-1] and not self.records_spans:
                self._repeat(*before[:-1], left)
                break
            self.run(loop.items)
            before = begin

    def _repeat(self, begin: float, parts: Parts, times: int) -> None:
        """Repeat what has happened since an iteration began, when the device had spent `parts`."""
        period = self.now - begin
        self.parts = {name: spent + times * (spent - parts.get(name, 0.0)) for name, spent in self.parts.items()}
        self.free = {queue: free + times * period for queue, free in self.free.items()}
        self.now += times * period


def simulate(items: Iterable[Item]) -> Timeline:
    """Run a device from idle queues to idle queues."""
    queues, run = Queues(), (*items, Wait())
    queues.run(run)
    return Timeline(queues.parts, run)


def trace(
    kind: Literal["replay", "prediction"], case: str, where: str, processes: Mapping[str, Sequence[Span]]
) -> dict[str, Any]:
    """The trace of a simulated step as JSON values: a process for each device or stage, a thread for each lane.

    The format is Chrome's (Google 2016, "Trace Event Format"), which ui.perfetto.dev shows. Times are in microseconds.
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
    lanes = [*DEVICE_LANES, *sorted({span.lane for span in spans} - {*DEVICE_LANES})]
    names = [("process_name", 0, {"name": process}), ("process_sort_index", 0, {"sort_index": pid})]
    for index, lane in enumerate(lanes):
        names += [("thread_name", index, {"name": lane}), ("thread_sort_index", index, {"sort_index": index})]
    yield from ({"ph": "M", "pid": pid, "tid": index, "name": name, "args": args} for name, index, args in names)
    for span in spans:
        event = {"ph": "X", "pid": pid, "tid": lanes.index(span.lane), "name": span.name, "cat": span.lane}
        yield event | {"ts": 1e6 * span.begin_seconds, "dur": 1e6 * span.seconds}
