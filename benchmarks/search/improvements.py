"""What would make a candidate faster: a neighbour in the search space, one change away."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.cases.case import Case
from benchmarks.cli.tables import aligned
from benchmarks.devices.chips import GIB
from benchmarks.search.ranking import Candidate, Ranking
from strategies import MeshSpec

LEAST_SHARE = 0.02
"""Smaller shares of a step are not worth a change."""


class Improvement(NamedTuple):
    """A change after which a candidate is faster.

    Attributes:
        resource: the bottleneck that the change relieves most, as `Candidate.limits` names it.
        share: of the step that the candidate would save if that were infinitely fast.
        change: in words.
        saves: share of the step that the change saves.
        lacking_bytes: memory that a device would need besides what is usable.
    """

    resource: str
    share: float
    change: str
    saves: float
    lacking_bytes: int


def improvement(candidate: Candidate, ranking: Ranking) -> Improvement | None:
    """The change that saves a candidate most time; None if nothing that is one change away is faster.

    Candidates that are too large count only if none that fits is faster.
    """
    now = candidate.step_seconds
    for group in (ranking.fitting, ranking.too_large):
        near = (other for other in group if change_of(candidate.case, other.case))
        best = min(near, key=lambda other: other.step_seconds, default=candidate)
        saves = 1 - best.step_seconds / now
        if saves > LEAST_SHARE:
            shares = candidate.limits
            saved = {name: share * now - best.waiting_seconds(name) for name, share in shares.items()}
            resource = max(saved, key=lambda name: saved[name])
            lacking = max(0, math.ceil(best.lacking_bytes))
            return Improvement(resource, shares[resource], change_of(candidate.case, best.case), saves, lacking)
    return None


def change_of(case: Case, other: Case) -> str:
    """The change from one case to another in words; empty if there is none, or several.

    Moving devices from one mesh axis to another is one change, also if that makes it another strategy.
    """
    changes = []
    if (case.strategy, case.mesh) != (other.strategy, other.mesh):
        changes.append(f"{other.strategy} {other.mesh}")
    if case.microbatches != other.microbatches:
        changes.append(f"microbatches={other.microbatches}")
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


def improvements(ranking: Ranking) -> dict[Case, Improvement | None]:
    """The improvement of the best of each strategy and set of mesh axes."""
    return {candidate.case: improvement(candidate, ranking) for candidate in ranking.best_per_layout}


def words(better: Improvement) -> str:
    """What a change saves, and what it needs."""
    lacking = better.lacking_bytes / GIB
    more = f", but needs {lacking:.1f} GiB more than there is" if lacking else ""
    return f"{better.change} saves {better.saves:.0%}{more}"


def table(found: Mapping[Case, Improvement | None]) -> list[str]:
    """The lines of the table of improvements."""
    rows = [("strategy", "mesh", "best single change", "bottleneck that it relieves")]
    for case, better in found.items():
        if better:
            rows.append((case.strategy, str(case.mesh), words(better), f"{better.resource} {better.share:.0%}"))
    return aligned(rows) if len(rows) > 1 else ["no single change is faster"]
