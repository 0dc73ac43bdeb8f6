"""What would lift the limit of a candidate: a neighbour in the search space, one change away, that is faster."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.cases.case import Case
from benchmarks.commandline.tables import aligned
from benchmarks.devices.chips import GIB
from benchmarks.devices.topology import Topology
from benchmarks.search.advised import Choice, Choices, limits, predicted, usable_bytes, waiting_seconds
from benchmarks.seconds.machine import Machine
from strategies import MeshSpec

LEAST_SHARE = 0.02
"""Smaller shares of a step are not worth a change."""
Limits = Mapping[str, float]
"""What a choice waits for, as `limits` gives it."""


class Lever(NamedTuple):
    """A change after which a candidate waits less for a resource and is faster.

    Attributes:
        resource: as `limits` names it.
        share: of the step that the candidate would save without waiting for it.
        change: in words.
        saves: share of the step that the change saves.
        lacking_bytes: memory that a device would need besides what is usable.
    """

    resource: str
    share: float
    change: str
    saves: float
    lacking_bytes: int


class Advice(NamedTuple):
    """The best choice of a layout, what it waits for, and the change that lifts that, if there is one."""

    choice: Choice
    limits: Limits
    lever: Lever | None

    def as_row(self) -> dict[str, Any]:
        """JSON values besides those of the choice."""
        return {"waits_for": dict(self.limits), "lever": self.lever and self.lever._asdict()}


def lever(choice: Choice, waits: Limits, choices: Choices, machine: Machine) -> Lever | None:
    """The change that saves a candidate most time, and the resource for which it then waits least of what it did.

    Only where no candidate that fits is faster, those count that are too large.

    Args:
        choice: the candidate.
        waits: what it waits for, most first, as `limits` gives it.
        choices: all candidates.
        machine: the devices.

    Returns:
        The change; None if nothing that is one change away is faster.
    """
    topology, now = choice.case.topology, choice.step_seconds
    assert topology
    fitting = (each for each in choices.best if change_of(choice.case, each.case))
    larger = (predicted(*each, machine, topology) for each in choices.larger if change_of(choice.case, each[0]))
    for candidates in (fitting, larger):
        best = min(candidates, key=lambda each: each.step_seconds, default=choice)
        saves = 1 - best.step_seconds / now
        if saves > LEAST_SHARE:
            after = {name: waiting_seconds(best, name, machine, topology) for name in waits}
            relief = {name: share * now - after[name] for name, share in waits.items()}
            resource = max(relief, key=lambda name: relief[name])
            lacking = max(0, math.ceil(best.needed_bytes - usable_bytes(machine)))
            return Lever(resource, waits[resource], change_of(choice.case, best.case), saves, lacking)
    return None


def change_of(case: Case, other: Case) -> str:
    """The change from one case to another in words; empty if there is none, or several.

    Moving devices from one mesh axis to another is one change, also if that makes it another strategy.
    """
    changes = []
    if (case.strategy, case.mesh) != (other.strategy, other.mesh):
        changes.append(f"{other.strategy} {other.mesh}")
    if case.microbatches != other.microbatches:
        changes.append(f"{other.microbatches} microbatches")
    if case.remat != other.remat:
        changes.append(f"remat={other.remat}")
    options = dict(other.options)
    changes += [f"{name}={options[name]}" for name, value in case.options if options.get(name, value) != value]
    return changes[0] if len(changes) == 1 and moved_axes(case.mesh, other.mesh) <= 2 else ""


def moved_axes(mesh: MeshSpec, other: MeshSpec) -> int:
    """Number of axes whose size differs.

    >>> moved_axes(MeshSpec.parse("data=16"), MeshSpec.parse("data=2,fsdp=8"))
    2
    """
    one, two = mesh.sizes, other.sizes
    return sum(one.get(axis, 1) != two.get(axis, 1) for axis in {*one, *two})


def advice_on(choices: Choices, its: Machine, topology: Topology) -> list[Advice]:
    """The best of each layout, with what limits it and what lifts that."""
    waits = [(each, limits(each, its, topology)) for each in choices.of_each_layout()]
    return [Advice(each, waiting, lever(each, waiting, choices, its)) for each, waiting in waits]


def lever_lines(advice: Sequence[Advice]) -> list[str]:
    """For the best of each layout what lifts one of its limits, if anything does."""
    rows = [("strategy", "mesh", "waits for", "one change away")]
    for choice, _, lifts in advice:
        if lifts:
            more = f", and take {lifts.lacking_bytes / GIB:.1f} GiB that are not there" if lifts.lacking_bytes else ""
            waiting = f"{lifts.resource}: {lifts.share:.0%} of the step"
            change = f"{lifts.change} would save {lifts.saves:.0%}{more}"
            rows.append((choice.case.strategy, str(choice.case.mesh), waiting, change))
    return aligned(rows) if len(rows) > 1 else ["nothing that is one change away is faster"]
