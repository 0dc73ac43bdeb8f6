"""Replay of a compiled step: how long it takes if its instructions run in the order of the schedule.

The device has one queue for compute and memory: an instruction takes its FLOPs at the chip's peak or its bytes at the
memory bandwidth, whichever is longer. Each kind of link has a queue of its own, which takes collectives in the order in
which they start; one that uses several links waits for all of them. On a torus, permutes in opposite directions go side
by side. The device waits for a collective where the schedule says so. This is exposed communication.

A branch that is taken in 3 of 7 iterations takes 3/7 of its time in each of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jax.sharding import Mesh

from benchmarks.devices.chips import Chip
from benchmarks.explain.roofline import collective_bandwidth, links
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import Program
from benchmarks.program.schedule import Event, Part
from benchmarks.program.work import Work

COMPUTE, MEMORY, EXPOSED, IDLE = "compute", "memory", "exposed", "idle"
"""Lanes of the device's own queue: bound by compute, bound by memory, waiting for a collective, waiting for a stage."""
PARTS = COMPUTE, MEMORY, EXPOSED, IDLE


@dataclass(frozen=True)
class Span:
    """Something that happens in a lane: an instruction, a collective on a link, or a wait.

    Attributes:
        lane: `COMPUTE`, `MEMORY`, `EXPOSED`, `IDLE` or the name of a link, for permutes on a torus with the direction.
        name: the instruction, or the collective by kind and axes.
        begin_seconds: when it begins, from the start of the step.
        seconds: how long it lasts.
    """

    lane: str
    name: str
    begin_seconds: float
    seconds: float


@dataclass(frozen=True)
class Repeated:
    """Spans of an iteration of a loop, and further iterations that are like it, one every `period_seconds`."""

    spans: tuple["Span | Repeated", ...]
    times: int
    period_seconds: float


@dataclass(frozen=True)
class Replay:
    """A replayed step. Its four parts add up to the time of the step.

    Attributes:
        compute_seconds: time in instructions that are bound by compute.
        memory_seconds: time in instructions that are bound by memory.
        exposed_seconds: time for which the device waits for collectives.
        idle_seconds: time for which the device, a pipeline stage, has nothing to do.
        spans: what happens when, in all lanes.
    """

    compute_seconds: float
    memory_seconds: float
    exposed_seconds: float
    idle_seconds: float = 0.0
    spans: tuple[Span | Repeated, ...] = field(default=(), repr=False)

    @property
    def step_seconds(self) -> float:
        """Time of the step."""
        return self.compute_seconds + self.memory_seconds + self.exposed_seconds + self.idle_seconds

    def all_spans(self) -> Iterator[Span]:
        """All spans, with those of every iteration."""
        return _unrolled(self.spans, 0.0)


def replay(program: Program, mesh: Mesh, chip: Chip, bubble: float = 0.0) -> Replay | None:
    """Replay a compiled step; None if the program's text is not in schedule order.

    Args:
        program: the compiled step.
        mesh: mesh of devices with coordinates and process indices.
        chip: specifications of the devices.
        bubble: fraction of the time for which a pipeline stage is idle.
    """
    if not program.scheduled:
        return None
    device = _Device(mesh, chip)
    device.run(program.events)
    device.wait_until(max(device.free.values(), default=0.0), "the last collectives")
    busy = device.spent[COMPUTE] + device.spent[MEMORY]
    device.spend(IDLE, "pipeline bubble", busy * bubble / (1 - bubble))
    parts = {f"{name}_seconds": seconds for name, seconds in device.spent.items()}
    return Replay(**parts, spans=tuple(device.spans))


class _Device:
    """A device that executes events.

    Attributes:
        now: seconds since the start of the step.
        spent: seconds by lane of the device's own queue.
        free: when each link and direction has done all that was asked of it.
        spans: what has happened.
    """

    def __init__(self, mesh: Mesh, chip: Chip) -> None:
        self.mesh, self.chip = mesh, chip
        self.now = 0.0
        self.spent: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.free: dict[tuple[str, int], float] = {}
        self.spans: list[Span | Repeated] = []

    def run(self, events: Sequence[Event], share: float = 1.0, trips: int = 0) -> None:
        """Execute events in order.

        Args:
            events: the events of a computation.
            share: fraction of their time that they take.
            trips: number of iterations of the loop around them; 0 outside of loops.
        """
        ends: dict[str, tuple[float, str]] = {}
        for event in events:
            for name in event.waits_for:
                self.wait_until(*ends[name])
            for part in event.parts:
                self._run_part(part, share, trips)
            if event.parts:
                continue
            self._execute(event.name, event.work, share)
            end = self._send(event.work, share)
            if event.begins:
                ends |= dict.fromkeys(event.begins, end)
            else:
                self.wait_until(*end)

    def _execute(self, name: str, work: Work, share: float) -> None:
        """Compute and access memory. What only communicates accesses memory while it sends (`_send`)."""
        compute_seconds = share * work.flops / self.chip.flops_per_second
        memory_seconds = share * work.memory_bytes / self.chip.memory_bytes_per_second
        if compute_seconds > memory_seconds:
            self.spend(COMPUTE, name, compute_seconds)
        elif work.flops or not work.collectives:
            self.spend(MEMORY, name, memory_seconds)

    def _run_part(self, part: Part, share: float, trips: int) -> None:
        """Execute a part of an event, until an iteration begins as the one before did: the rest is like that one."""
        inside = part.times if part.taken is None else 0
        whole, fraction = divmod(part.mean_times(trips), 1)
        before = None
        for left in range(int(whole), 0, -1):
            begin = _Mark(self.now, dict(self.spent), len(self.spans), self._busy())
            if before and begin.busy == before.busy:
                self._repeat(before, left)
                break
            self.run(part.events, share, inside)
            before = begin
        if fraction:
            self.run(part.events, share * fraction, inside)

    def _busy(self) -> dict[tuple[str, int], float]:
        """Seconds for which each queue of a link is still busy."""
        return {name: round(free - self.now, 12) for name, free in self.free.items() if free > self.now}

    def _repeat(self, begin: "_Mark", times: int) -> None:
        """Repeat what has happened since `begin`."""
        later_seconds = times * (self.now - begin.now)
        self.spans.append(Repeated(tuple(self.spans[begin.spans :]), times, self.now - begin.now))
        self.spent = {lane: spent + times * (spent - begin.spent[lane]) for lane, spent in self.spent.items()}
        self.free = {name: free + later_seconds for name, free in self.free.items()}
        self.now += later_seconds

    def _send(self, work: Work, share: float) -> tuple[float, str]:
        """Put collectives into the queues of their links; returns when the last one ends, and what it is.

        An instruction that also computes accesses memory while it computes (`_execute`), and others while they send.
        """
        ends, memory_bytes = [(self.now, "")], 0 if work.flops else work.memory_bytes
        for each in work.collectives:
            queues, lanes = self._queues(each)
            begin = max(self.now, *(self.free.get(queue, 0.0) for queue in queues))
            bandwidth = collective_bandwidth(self.chip, self.mesh, each.kind, each.axes)
            sending_seconds = each.times * each.sent_bytes / bandwidth
            seconds = share * max(sending_seconds, memory_bytes / self.chip.memory_bytes_per_second)
            self.free |= dict.fromkeys(queues, begin + seconds)
            name = f"{each.kind} over {','.join(each.axes)}"
            self.spans += [Span(lane, name, begin, seconds) for lane in lanes]
            ends.append((begin + seconds, name))
        return max(ends)

    def _queues(self, each: Collective) -> tuple[list[tuple[str, int]], list[str]]:
        """The queues that a collective takes, by link and direction, and its lanes.

        On a torus a permute takes one direction of a link, and other collectives take both.
        """
        used = links(self.chip, self.mesh, each.axes)
        if self.chip.torus_dims and each.direction:
            return [(link, each.direction) for link in used], [f"{link} {'-+'[each.direction > 0]}" for link in used]
        return [(link, direction) for link in used for direction in (1, -1)], list(used)

    def wait_until(self, end: float, name: str) -> None:
        """Wait for a collective of this name, which ends at that time."""
        self.spend(EXPOSED, name, max(0.0, end - self.now))

    def spend(self, lane: str, name: str, seconds: float) -> None:
        """Let the device's own queue do something."""
        if seconds:
            self.spans.append(Span(lane, name, self.now, seconds))
            self.spent[lane] += seconds
            self.now += seconds


class _Mark(NamedTuple):
    """The state of a device at some time: its time, what it spent, how many spans there are, and how busy links are."""

    now: float
    spent: Mapping[str, float]
    spans: int
    busy: Mapping[tuple[str, int], float]


def _unrolled(spans: Iterable[Span | Repeated], later_seconds: float) -> Iterator[Span]:
    """Spans with those of every iteration, so much later."""
    for each in spans:
        if isinstance(each, Span):
            yield replace(each, begin_seconds=each.begin_seconds + later_seconds)
        else:
            for times in range(1, each.times + 1):
                yield from _unrolled(each.spans, later_seconds + times * each.period_seconds)
