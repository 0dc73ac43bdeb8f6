"""The best candidate on each power of two of devices, with the same batch (strong) or one that grows (weak scaling)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

from benchmarks.cases.case import Case
from benchmarks.cli.tables import paragraph
from benchmarks.devices.topology import Topology, balanced_factors
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.document import rows_of
from benchmarks.search.ranking import Ranking, ranked
from benchmarks.search.report import Result, Scaling
from benchmarks.search.rows import BOTTLENECK, MESH, MILLISECONDS, OPTIONS, STRATEGY, TOKENS, UTILIZATION, Column, table
from benchmarks.simulate.intervals import interval
from benchmarks.simulate.machine import Machine

SPREAD = 8
"""Most devices along `context`, and along `tensor` where devices have no hosts."""
COLUMNS = (
    Column("scaling", lambda row: f"{row['scaling']} {row['devices']}"),
    *(Column("batch", "global_batch_sequences", "d"), STRATEGY, MESH, Column("ms", "predicted_seconds", *MILLISECONDS)),
    *(TOKENS, UTILIZATION, BOTTLENECK, OPTIONS),
)
VARIED = {"schedule": ("1f1b", "zb-h1"), "gather": ("layer",)}
"""Options that are varied here, unless the user names others: fewer than in a search, for there are many sizes."""


def sized(topology: Topology, devices: int) -> Topology:
    """A topology of the same kind, with hosts as large, and another number of devices, if there is such a one.

    >>> str(sized(Topology.parse("h100:1x8"), 32)), str(sized(Topology.parse("v5p:4x4x4"), 128))
    ('h100:4x8', 'v5p:4x4x8')
    """
    if topology.chip and topology.chip.torus_dims:
        return Topology(topology.kind, balanced_factors(devices, topology.chip.torus_dims))
    inside = min(devices, topology.shape[-1])
    return Topology(topology.kind, (devices // inside, inside))


def results(
    space: SearchSpace, base: Topology, sizes: Sequence[int], device_batch_size: int, machine: Machine, at_once: int = 1
) -> Iterator[Result]:
    """Yield the best on each of these numbers of devices, whose hosts are as large as those of `base`.

    Strong scaling comes first, with the batch of the space; in weak scaling a device has `device_batch_size` sequences.
    """
    options = tuple((VARIED | dict(space.options)).items())
    for scaling, devices in product(get_args(Scaling), sizes):
        batch = device_batch_size * devices if scaling == "weak" else space.batch_size
        sized_space = replace(space, topology=sized(base, devices), batch_size=batch, options=options)
        best = best_of(ranked(filter(usual, sized_space.cases()), machine, at_once))
        yield Result(sized_space, machine, best, scaling=scaling)


def best_of(ranking: Ranking) -> Ranking:
    """The best candidate alone; where none fits, the smallest, or else one that is infeasible."""
    if ranking.fitting:
        return Ranking(ranking.fitting[:1])
    if ranking.too_large:
        return Ranking((), (min(ranking.too_large, key=lambda candidate: candidate.needed_bytes),))
    return Ranking((), (), ranking.infeasible[:1])


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
        and sizes.get("pipeline", 1) <= case.config.blocks
        and (data == 1 or fsdp in (1, room))
    )


def scaling_report(found: Sequence[Result]) -> list[str]:
    """The lines of the report: the machine, and a table with a row for each number of devices."""
    space, machine = found[0].space, found[0].machine
    nothing = {"strategy": "nothing fits", "mesh": "", "remat": None}
    rows = [row | ({} if row["status"] == "fits" else nothing) for result in found for row in rows_of(result)]
    work = f"{space.preset}, {space.config.sequence} tokens in a sequence, {space.dtype}, on {space.topology.kind}"
    low, high = interval(machine, space.config)
    likely = f"times are {low - 1:+.0%} to {high - 1:+.0%} with a probability of 80%"
    known = f"machine {machine.name}, {likely}: {machine.source}"
    return [*paragraph(work, known), "", *table(COLUMNS, rows)]


def powers_of_two(first: int, last: int) -> tuple[int, ...]:
    """The first number, doubled until it exceeds the last.

    >>> powers_of_two(8, 64), powers_of_two(3, 10)
    ((8, 16, 32, 64), (3, 6))
    """
    return tuple(first << times for times in range(int(math.log2(last / first)) + 1))
