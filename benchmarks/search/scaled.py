"""The best candidate at each power of two of devices, with the same batch (strong) or one that grows (weak scaling)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.cases.case import Case
from benchmarks.commandline.tables import aligned, wrapped
from benchmarks.devices.topology import Topology, balanced_factors
from benchmarks.search.advised import Choice, advised, limits
from benchmarks.search.candidates import Doublings, SearchSpace
from benchmarks.seconds.machine import Machine

Scaling = Literal["strong", "weak"]
SPREAD = 8
"""Most devices along `context`, and along `tensor` where devices have no hosts."""
OPTIONS = {"schedule": ("1f1b", "zb-h1"), "gather": ("layer",)}
"""Options that are varied here, unless the user names others: fewer than in a search, for there are many sizes."""


@dataclass(frozen=True)
class Point:
    """The best candidate on a number of devices.

    Attributes:
        scaling: of the batch.
        topology: the devices.
        devices: how many there are.
        batch_size: sequences in a global batch.
        choice: the best; None if none fits.
        limits: what the best waits for, as `limits` gives it; empty without one.
    """

    scaling: Scaling
    topology: Topology
    devices: int
    batch_size: int
    choice: Choice | None
    limits: dict[str, float]

    @property
    def limit(self) -> str:
        """What the best waits for most; empty if nothing fits."""
        return next(iter(self.limits), "")


def sized(topology: Topology, devices: int) -> Topology:
    """A topology of the same kind, with hosts as large, and another number of devices.

    Raises:
        ValueError: there is no such topology, such as a slice that is too large.

    >>> str(sized(Topology.parse("h100:1x8"), 32)), str(sized(Topology.parse("v5p:4x4x4"), 128))
    ('h100:4x8', 'v5p:4x4x8')
    """
    if topology.chip and topology.chip.torus_dims:
        return Topology(topology.kind, balanced_factors(devices, topology.chip.torus_dims))
    inside = min(devices, topology.shape[-1])
    return Topology(topology.kind, (devices // inside, inside))


def points(space: SearchSpace, base: Topology, sizes: tuple[int, ...], each: int, machine: Machine) -> Iterator[Point]:
    """The best on each number of devices, strong scaling first.

    Args:
        space: what is searched; its batch is that of strong scaling.
        base: of the kind of devices, with hosts as large.
        sizes: numbers of devices.
        each: sequences of a device in weak scaling.
        machine: predicts the seconds.
    """
    kinds: tuple[Scaling, ...] = "strong", "weak"
    for scaling in kinds:
        for devices in sizes:
            topology = sized(base, devices)
            batch = each * devices if scaling == "weak" else space.batch_size
            its = replace(
                space, topology=topology, batch_size=batch, options=tuple((OPTIONS | dict(space.options)).items())
            )
            doublings = Doublings(every=bool(space.microbatches))
            best = advised(filter(usual, its.cases()), machine, topology, doublings).best[:1]
            found = limits(best[0], machine, topology) if best else {}
            yield Point(scaling, topology, devices, batch, best[0] if best else None, found)


def usual(case: Case) -> bool:
    """Whether a mesh is usual at scale: tensor inside a host, and fsdp inside a host or over all that is left."""
    sizes, topology = case.mesh.sizes, case.topology
    assert topology
    inside = SPREAD if topology.chip and topology.chip.torus_dims else topology.shape[-1]
    fsdp, data = sizes.get("fsdp", 1), sizes.get("data", 1)
    room = max(1, inside // sizes.get("tensor", 1))
    return (
        sizes.get("tensor", 1) <= inside
        and sizes.get("context", 1) <= SPREAD
        and sizes.get("pipeline", 1) <= case.config.layers
        and (data == 1 or fsdp in (1, room))
    )


def row(point: Point, machine: Machine) -> dict[str, Any]:
    """A point as JSON values. Those of its choice are None if nothing fits."""
    told: dict[str, Any] = {
        "scaling": point.scaling,
        "topology": str(point.topology),
        "devices": point.devices,
        "batch_size": point.batch_size,
    }
    names = *("strategy", "mesh", "microbatches", "remat", "options", "predicted_seconds", "tokens_per_second"), "limit"
    if not (best := point.choice):
        return told | dict.fromkeys((*names, "model_flops_utilization"), None) | {"limits": {}}
    return told | best.as_row(machine) | {"limit": point.limit, "limits": point.limits}


def document(space: SearchSpace, found: list[Point], machine: Machine) -> dict[str, Any]:
    """All points as JSON values."""
    return {
        "kind": "scaling",
        "schema_version": 1,
        "device": space.topology.kind,
        "preset": space.preset,
        "sequence_tokens": space.config.sequence,
        "dtype": space.dtype,
        "machine": machine.name,
        "error": machine.error,
        "points": [row(point, machine) for point in found],
    }


def report(space: SearchSpace, found: list[Point], machine: Machine) -> list[str]:
    """The lines of the report: a table, and whose predictions they are."""
    table: list[tuple[str, ...]] = [
        (
            "scaling",
            "devices",
            "batch",
            "strategy",
            "mesh",
            "options",
            "ms",
            "tokens/s",
            "MFU",
            "waits for",
        )
    ]
    for point in found:
        place = point.scaling, str(point.devices), str(point.batch_size)
        if not (best := point.choice):
            table.append((*place, "nothing fits", *[""] * 6))
            continue
        times = f"{1e3 * best.step_seconds:,.0f}", f"{best.tokens_per_second:,.0f}", f"{best.utilization(machine):.0%}"
        table.append((*place, *best.cells, *times, f"{point.limit} {point.limits[point.limit]:.0%}"))
    work = f"{space.preset}, {space.config.sequence} tokens in a sequence, {space.dtype}, on {space.topology.kind}"
    known = f"machine {machine.name}, {machine.error_text}: {machine.source}"
    return [*wrapped(work), *wrapped(known), "", *aligned(table, [*"<>><<<", *">>>", "<"])]


def powers_of_two(first: int, last: int) -> tuple[int, ...]:
    """The first number, doubled until it exceeds the last.

    >>> powers_of_two(8, 64), powers_of_two(3, 10)
    ((8, 16, 32, 64), (3, 6))
    """
    return tuple(first << times for times in range(int(math.log2(last / first)) + 1))
