"""A compiled step on a machine: simulated in the order of its schedule, its roofline, and whether it fits into memory.

An instruction takes its FLOPs at the machine's rate or its bytes at the memory bandwidth, whichever is longer. A
collective takes its links, and is waited for where the schedule says so. A branch that is taken in 3 of 7 iterations
takes 3/7 of its time in each of them.

The roofline (Williams et al. 2009) prices the work of all instructions together, as if everything overlapped. Its
memory traffic is no bound: caches may serve a part, and a collective accesses memory beside compute that does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax.sharding import Mesh

from benchmarks.cases.failures import HBM, CaseFailure, Status, exhausted_memory
from benchmarks.devices.chips import CHIPS, GIB
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import Program
from benchmarks.program.work import Event as Scheduled
from benchmarks.program.work import Part, Work
from benchmarks.simulate.links import collective_seconds, mesh_group
from benchmarks.simulate.machine import RANGES, Constants, Machine
from benchmarks.simulate.queues import (
    COMPUTE,
    DEVICE_LANES,
    EXPOSED,
    IDLE,
    MEMORY,
    Event,
    Item,
    Loop,
    Timeline,
    Wait,
    added,
    simulate,
)
from benchmarks.simulate.stack import NONE, KernelCosts, Stack
from strategies import Step
from strategies.core.sizes import BYTES

IDEAL = Constants(**{name: float(name.endswith("efficiency")) for name in RANGES})
"""Constants of a stack that reaches all specifications, without latencies and overheads."""
COMPILED = Stack("compiled", KernelCosts(NONE, NONE, 0, 0, NONE))
"""What a compiled program overlaps and moves is in the program."""
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def ideal(kind: str) -> Machine:
    """The machine that reaches the published specifications of a kind of chip."""
    chip = replace(CHIPS[kind], matmul_share=1.0, cores=0)
    return Machine(kind, chip, COMPILED, IDEAL, 0.0, chip.source)


def replay(program: Program, mesh: Mesh, machine: Machine, dtype: str, bubble: float = 0.0) -> Timeline | None:
    """Simulate a compiled step on a mesh of devices with coordinates or process indices.

    The dtype is that of its matmuls, and `bubble` the fraction of time for which a pipeline stage is idle. None if the
    program's text is not in schedule order.
    """
    if not program.scheduled:
        return None
    items = *Priced(mesh, machine, dtype).items(program.events), Wait()
    replayed = simulate(items)
    working = replayed.parts.get(COMPUTE, 0.0) + replayed.parts.get(MEMORY, 0.0)
    idle = Event(IDLE, working * bubble / (1 - bubble), name="pipeline bubble")
    return simulate((*items, idle)) if bubble else replayed


@dataclass(frozen=True)
class Roofline:
    """Seconds of one device for each resource on its own; the network is the busiest kind of link."""

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
        return max(vars(self), key=lambda name: getattr(self, name)).removesuffix("_seconds")


@dataclass(frozen=True)
class Priced:
    """Work of a compiled program on a machine. The attributes are the arguments of `replay`."""

    mesh: Mesh
    machine: Machine
    dtype: str

    def roofline(self, work: Work) -> Roofline:
        """The roofline of a step with this work."""
        busy: dict[str, float] = {}
        for collective in work.collectives:
            seconds, queues = self.sending(collective)
            busy = added(busy, dict.fromkeys(queues, seconds))
        return Roofline(self.compute_seconds(work), self.memory_seconds(work), max(busy.values(), default=0.0))

    def compute_seconds(self, work: Work) -> float:
        """Seconds of its FLOPs."""
        return work.flops / (self.machine.best_rate(BYTES[self.dtype]) * self.machine.constants.matmul_efficiency)

    def memory_seconds(self, work: Work) -> float:
        """Seconds of its memory traffic."""
        return work.memory_bytes / self.machine.effective_chip.memory_bytes_per_second

    def sending(self, collective: Collective) -> tuple[float, tuple[str, ...]]:
        """Seconds of all executions of a collective, and the queues of its links.

        On a torus a permute takes one direction of the links; others take both.
        """
        where, sent_bytes = mesh_group(self.machine.chip, self.mesh, collective.axes), collective.sent_bytes
        times, queues = collective.times, where.links
        if self.machine.chip.torus_dims:
            signs = "-+"[collective.direction > 0] if collective.direction else "-+"
            queues = tuple(f"{link} {sign}" for link in queues for sign in signs)
        return collective_seconds(self.machine, collective.kind, where, times * sent_bytes, times), queues

    def items(self, events: Sequence[Scheduled], share: float = 1.0, trips: int = 0) -> Iterator[Item]:
        """Yield the events of a computation. `share`: of their time; `trips`: of the loop around it, 0 without one."""
        for event in events:
            yield from map(Wait, event.waits_for)
            for part in event.parts:
                yield from self._part(part, share, trips)
            if not event.parts:
                yield from self._own(event.name, event.work, share)
                yield from self._sent(event, share)

    def _part(self, part: Part, share: float, trips: int) -> Iterator[Loop]:
        inside = part.times if part.taken is None else 0
        whole, fraction = divmod(part.mean_times(trips), 1)
        for times, of_each in ((int(whole), share), (1, share * fraction)):
            if times and of_each:
                yield Loop(tuple(self.items(part.events, of_each, inside)), times)

    def _own(self, name: str, work: Work, share: float) -> Iterator[Event]:
        """Compute and access memory. What only communicates accesses memory while it sends (`_sent`)."""
        compute_seconds, memory_seconds = share * self.compute_seconds(work), share * self.memory_seconds(work)
        if compute_seconds > memory_seconds:
            yield Event(COMPUTE, compute_seconds, name=name)
        elif work.flops or not work.collectives:
            yield Event(MEMORY, memory_seconds, name=name)

    def _sent(self, event: Scheduled, share: float) -> Iterator[Item]:
        """The collectives of an instruction, which the device waits for together: at once, or by any of their names.

        An instruction that also computes accesses memory while it computes, and others while they send.
        """
        work, labels = event.work, event.begins or (event.name,)
        memory_seconds = 0 if work.flops else self.memory_seconds(work)
        for collective in work.collectives:
            seconds, queues = self.sending(collective)
            name = f"{collective.kind} over {','.join(collective.axes)}"
            yield Event(EXPOSED, share * max(seconds, memory_seconds), queues, labels, name)
        if work.collectives and not event.begins:
            yield Wait(event.name)


class DoesNotFit(CaseFailure):
    """The step needs more memory than the chip has. This is a result with a number, not an error of the run."""

    status: Status = "oom"


@dataclass(frozen=True)
class ChipEstimate:
    """Memory of a step on one device as the compiler planned it, its least time, and its compiled schedule simulated.

    If the compiler gave up, the memory is a lower bound. Times need a program that was read, a replay one in order.
    """

    needed_bytes: int
    capacity_bytes: int
    roofline: Roofline | None = None
    flops_per_second: float | None = None
    replay: Timeline | None = None

    @property
    def fits(self) -> bool:
        """Whether the step fits into memory."""
        return self.needed_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        """Needed and available memory in words.

        >>> print(ChipEstimate(45 * GIB, 16 * GIB))
        needs 45.0 GiB of 16.0 GiB, 29.0 GiB too much
        """
        needed, capacity = self.needed_bytes / GIB, self.capacity_bytes / GIB
        over = "" if self.fits else f", {needed - capacity:.1f} GiB too much"
        return f"needs {needed:.1f} GiB of {capacity:.1f} GiB{over}"

    def as_row(self, flops: float, tokens: float) -> Mapping[str, str | float | bool | None]:
        """The columns of a record, always the same ones, by the model FLOPs and the tokens of one device per step."""
        least = self.roofline or Roofline(0, 0, 0)
        seconds = least.step_seconds or None
        replayed = self.replay
        return {
            "chip.needed_bytes": self.needed_bytes,
            "chip.capacity_bytes": self.capacity_bytes,
            "chip.fits": self.fits,
            **{f"roofline.{name}": seconds and value for name, value in vars(least).items()},
            "roofline.bound": seconds and least.bound,
            **self._rates("roofline", seconds, flops, tokens),
            **{f"replay.{part}_seconds": replayed and replayed.parts.get(part, 0.0) for part in DEVICE_LANES},
            **self._rates("replay", replayed and replayed.step_seconds, flops, tokens),
        }

    def _rates(self, source: str, seconds: float | None, flops: float, tokens: float) -> Mapping[str, float | None]:
        """Columns of a step that takes this many seconds."""
        rate = flops / seconds if seconds else None
        return {
            f"{source}.step_seconds": seconds,
            f"{source}.tokens_per_second_per_device": tokens / seconds if seconds else None,
            f"{source}.model_flops_utilization": rate and self.flops_per_second and rate / self.flops_per_second,
        }


def estimate(kind: str, step: Step, program: Program, needed_bytes: int, bubble: float) -> ChipEstimate:
    """The planned memory of a compiled step, and the roofline and the replay of its program if it was read."""
    machine, dtype = ideal(kind), step.train.dtype
    chip = machine.chip
    if program.unread:
        return ChipEstimate(needed_bytes, chip.memory_bytes)
    roofline = Priced(step.mesh, machine, dtype).roofline(program)
    replayed = replay(program, step.mesh, machine, dtype, bubble)
    return ChipEstimate(needed_bytes, chip.memory_bytes, roofline, chip.flops_per_second, replayed)


def estimate_from_error(error: Exception) -> ChipEstimate | None:
    """The estimate in a TPU compiler's error for a step that does not fit into HBM; None for other errors.

    >>> message = "RESOURCE_EXHAUSTED: memory required for HLO temporaries (129.78G) exceeds available HBM (15.75G)."
    >>> print(estimate_from_error(ValueError(message)))
    needs 129.8 GiB of 15.8 GiB, 114.0 GiB too much
    """
    if exhausted_memory(error) != HBM:
        return None
    sizes = [int(float(size) * UNITS[unit]) for size, unit in re.findall(r"\b([0-9.]+)([KMGT])\b", str(error))][:2]
    return ChipEstimate(max(sizes), min(sizes)) if len(sizes) == 2 else None
