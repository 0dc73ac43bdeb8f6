"""A compiled step: simulated in the order of its schedule, and its roofline.

In the simulation an instruction takes its FLOPs at the chip's peak or its bytes at the memory bandwidth, whichever is
longer. A collective takes its links, and is waited for where the schedule says so. On a torus, permutes in opposite
directions go side by side. A branch that is taken in 3 of 7 iterations takes 3/7 of its time in each of them.

The roofline (Williams et al. 2009) is the least time of a step. It is not a strict bound: collectives are added up,
although some could use different links at the same time, and so is memory traffic, although caches may serve a part.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jax.sharding import Mesh

from benchmarks.devices.chips import Chip
from benchmarks.program import schedule
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import Program
from benchmarks.program.work import Work
from benchmarks.simulate.links import Group, bandwidth, mesh_group
from benchmarks.simulate.queues import COMPUTE, EXPOSED, IDLE, MEMORY, Event, Item, Loop, Queues, Timeline, Wait


def replay(program: Program, mesh: Mesh, chip: Chip, bubble: float = 0.0) -> Timeline | None:
    """Simulate a compiled step; None if the program's text is not in schedule order.

    Args:
        program: the compiled step.
        mesh: mesh of devices with coordinates and process indices.
        chip: specifications of the devices.
        bubble: fraction of the time for which a pipeline stage is idle.
    """
    if not program.scheduled:
        return None
    queues = Queues()
    queues.run(Priced(mesh, chip).items(program.events))
    busy = queues.finish().parts
    working = busy.get(COMPUTE, 0.0) + busy.get(MEMORY, 0.0)
    queues.run([Event(IDLE, working * bubble / (1 - bubble), name="pipeline bubble")])
    return queues.finish()


@dataclass(frozen=True)
class Priced:
    """Events of a program on a chip."""

    mesh: Mesh
    chip: Chip

    def items(self, events: Sequence[schedule.Event], share: float = 1.0, trips: int = 0) -> Iterator[Item]:
        """Yield the events of a computation.

        Args:
            events: of the program, in order.
            share: fraction of their time that they take.
            trips: number of iterations of the loop around them; 0 outside of loops.
        """
        for event in events:
            yield from map(Wait, event.waits_for)
            for part in event.parts:
                yield from self._part(part, share, trips)
            if not event.parts:
                yield from self._own(event.name, event.work, share)
                yield from self._sent(event, share)

    def _part(self, part: schedule.Part, share: float, trips: int) -> Iterator[Loop]:
        inside = part.times if part.taken is None else 0
        whole, fraction = divmod(part.mean_times(trips), 1)
        if whole:
            yield Loop(tuple(self.items(part.events, share, inside)), int(whole))
        if fraction:
            yield Loop(tuple(self.items(part.events, share * fraction, inside)), 1)

    def _own(self, name: str, work: Work, share: float) -> Iterator[Event]:
        """Compute and access memory. What only communicates accesses memory while it sends (`_sent`)."""
        compute_seconds = share * work.flops / self.chip.flops_per_second
        memory_seconds = share * work.memory_bytes / self.chip.memory_bytes_per_second
        if compute_seconds > memory_seconds:
            yield Event(COMPUTE, compute_seconds, name=name)
        elif work.flops or not work.collectives:
            yield Event(MEMORY, memory_seconds, name=name)

    def _sent(self, event: schedule.Event, share: float) -> Iterator[Item]:
        """The collectives of an instruction, which the device waits for together: at once, or by any of their names.

        An instruction that also computes accesses memory while it computes, and others while they send.
        """
        work, labels = event.work, event.begins or (event.name,)
        memory_seconds = 0 if work.flops else work.memory_bytes / self.chip.memory_bytes_per_second
        for collective in work.collectives:
            where = mesh_group(self.chip, self.mesh, collective.axes)
            sending_seconds = collective.times * collective.sent_bytes / bandwidth(self.chip, collective.kind, where)
            name = f"{collective.kind} over {','.join(collective.axes)}"
            yield Event(
                EXPOSED, share * max(sending_seconds, memory_seconds), self._queues(collective, where), labels, name
            )
        if work.collectives and not event.begins:
            yield Wait(event.name)

    def _queues(self, collective: Collective, where: Group) -> tuple[str, ...]:
        """The queues of a collective's links. On a torus a permute takes one direction of them; others take both."""
        if not self.chip.torus_dims:
            return where.links
        signs = "-+"[collective.direction > 0] if collective.direction else "-+"
        return tuple(f"{link} {sign}" for link in where.links for sign in signs)


Sent = tuple[str, tuple[str, ...], float]
"""Communication of a device per step: kind of collective, mesh axes, bytes sent."""


@dataclass(frozen=True)
class Roofline:
    """Seconds that one device needs for each resource on its own.

    Attributes:
        compute_seconds: matmul FLOPs at the chip's peak.
        memory_seconds: memory traffic at the chip's memory bandwidth.
        network_seconds: all collectives, one after another.
    """

    compute_seconds: float
    memory_seconds: float
    network_seconds: float

    @property
    def step_seconds(self) -> float:
        """Time of a step with perfect overlap of all three."""
        return max(self.compute_seconds, self.memory_seconds, self.network_seconds)

    @property
    def bound(self) -> str:
        """The limiting resource: "compute", "memory" or "network"."""
        parts = {"compute": self.compute_seconds, "memory": self.memory_seconds, "network": self.network_seconds}
        return max(parts, key=lambda name: parts[name])


def roofline(chip: Chip, mesh: Mesh, flops: float, memory_bytes: float, sent: Iterable[Sent]) -> Roofline:
    """Roofline of a step.

    Args:
        chip: specifications of the devices.
        mesh: mesh of devices with coordinates and process indices.
        flops: FLOPs of one device per step.
        memory_bytes: bytes that one device reads and writes per step.
        sent: what one device sends per step.
    """
    return Roofline(
        flops / chip.flops_per_second,
        memory_bytes / chip.memory_bytes_per_second,
        sum(sent_bytes / collective_bandwidth(chip, mesh, kind, axes) for kind, axes, sent_bytes in sent),
    )


def collective_bandwidth(chip: Chip, mesh: Mesh, kind: str, axes: tuple[str, ...]) -> float:
    """Bytes per second that a device can send in a kind of collective along some axes of a mesh."""
    return bandwidth(chip, kind, mesh_group(chip, mesh, axes))
