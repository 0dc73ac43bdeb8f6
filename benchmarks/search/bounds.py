"""What a step is bound to take on devices that need not be there, by formulas alone; and the order of candidates by it.

The bound on its time is that of roofline.py, of what formulas say of the step: nobody waits, but for the bubble of a
pipeline, and everything overlaps. How much slower a step is nobody knows who has not run it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from benchmarks.cases import Case
from benchmarks.devices.chips import Chip
from benchmarks.devices.placement import placed
from benchmarks.devices.topology import Topology
from benchmarks.explain.estimate import Estimate
from benchmarks.explain.roofline import Roofline, bytes_per_second
from strategies import Infeasible, MeshSpec
from strategies.costs.plan import BYTES, Plan
from strategies.costs.predict import Cost, predict
from strategies.costs.traffic import is_tied
from strategies.model.gpt import Block
from strategies.sharding.layout import Axes


@dataclass(frozen=True)
class Candidate:
    """A case, and what formulas say of it.

    Attributes:
        cost: by formulas; or why model, mesh and batch do not fit together.
        bound: what it takes of a chip; none of a case that is infeasible.
    """

    case: Case
    cost: Cost | Infeasible
    bound: Estimate | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be, and a chip's memory is enough by formula."""
        return self.bound is not None and self.bound.fits

    @property
    def order(self) -> tuple[float, ...]:
        """Smaller is better: first what fits, by the bound on its time, and then by the time if nothing overlaps.

        Then what does not fit, by what it needs; last what cannot be.
        """
        if self.bound is None or self.bound.roofline is None:
            return (2,)
        least = self.bound.roofline
        if not self.bound.fits:
            return 1, self.bound.needed_bytes
        alone = least.compute_seconds + least.memory_seconds + least.network_seconds
        return 0, least.step_seconds, alone, self.bound.needed_bytes


def ranked(cases: Iterable[Case], chip: Chip) -> list[Candidate]:
    """The candidates, best first."""
    return sorted((weighed(case, chip) for case in cases), key=lambda each: each.order)


def foremost(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Of those that are feasible the first of each strategy and set of mesh axes; the rest is variations on them."""
    first: dict[tuple[str, ...], Candidate] = {}
    for each in candidates:
        if each.bound:
            first.setdefault((each.case.strategy, *each.case.mesh.sizes), each)
    return list(first.values())


def weighed(case: Case, chip: Chip) -> Candidate:
    """What formulas say of a case on the devices of its topology, were they such chips."""
    try:
        cost = predict(case.strategy, case.config, case.mesh, case.training())
    except Infeasible as error:
        return Candidate(case, error)
    needed = sum(cost.arguments.values()) + sum(cost.temporaries.values())
    return Candidate(case, cost, Estimate(needed, chip.memory_bytes, bound(case, cost, chip), chip.flops_per_second))


def bound(case: Case, cost: Cost, chip: Chip) -> Roofline:
    """The least time of a step: with a bubble it computes for so much longer.

    FLOPs are those of the stage with the most layers, for which the others wait.
    """
    assert case.topology
    devices = case.mesh.size
    rates = {each: rate(case.topology, chip, case.mesh, *each) for each in cost.sent}
    return Roofline(
        sum(cost.flops.values()) / devices / (1 - cost.bubble) / chip.flops_per_second,
        moved_bytes(cost.plan) / chip.memory_bytes_per_second,
        sum(sum(parts.values()) / rates[each] for each, parts in cost.sent.items()),
    )


def moved_bytes(plan: Plan) -> int:
    """Bytes of its memory that a device reads and writes at least, if its caches keep nothing from layer to layer.

    weights: as it computes with them, read for each microbatch forward and backward, and once more with `remat="full"`
    gradients: in float32, written and read for each microbatch
    state: parameters and moments, read and written once, of what it updates
    activations: what layers keep for the backward pass, written and read
    """
    train, number = plan.train, BYTES[plan.train.dtype]
    used = [each for each in plan.weights if is_tied(plan, each) or not each.name.startswith("embedding.")]
    passes = 3 if train.remat == "full" else 2
    weights = passes * number * sum(each.elements for each in used) * plan.shards
    kept = 2 * Block.kept_bytes(plan.share) * plan.layers
    state = 2 * 3 * 4 * plan.elements // plan.updates
    return train.microbatches * (weights + 2 * 4 * plan.elements + kept) + state


@cache
def rate(topology: Topology, chip: Chip, spec: MeshSpec, kind: str, axes: Axes) -> float:
    """Bytes a second that a device can send by a kind of collective along some axes of a mesh."""
    return bytes_per_second(chip, placed(topology, spec), kind, axes)
