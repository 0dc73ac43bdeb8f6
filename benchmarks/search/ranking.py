"""Memory and roofline of a step from formulas alone, and the ranking of candidates by predicted time.

The roofline (roofline.py) has FLOPs and bytes from formulas: perfect overlap, and no waiting except for the pipeline
bubble. Candidates are ranked by the prediction of benchmarks/seconds, which counts what is waited for. The bound of
`predicted.bound_seconds` leaves out what the roofline estimates, such as memory traffic, and no step is faster.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from benchmarks.cases.case import Case
from benchmarks.devices.chips import Chip
from benchmarks.devices.placement import topology_mesh
from benchmarks.devices.topology import Topology
from benchmarks.explain.estimate import ChipEstimate
from benchmarks.search.candidates import MEMORY_FRACTION, Doublings, first_per_layout
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.predicted import predict_seconds
from benchmarks.simulate.roofline import Roofline, collective_bandwidth
from strategies import Infeasible, MeshSpec
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.core.traffic import is_tied
from strategies.costs.predict import Cost, predict


@dataclass(frozen=True)
class Candidate:
    """A case, and what formulas say about it.

    Attributes:
        case: the case.
        cost: its cost by formulas, or why it is infeasible.
        estimate: memory and roofline on a chip; None if the case is infeasible.
        predicted_seconds: predicted time of a step; None if the case is infeasible, or no machine was given.
    """

    case: Case
    cost: Cost | Infeasible
    estimate: ChipEstimate | None = None
    predicted_seconds: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the case is feasible and fits into a chip's memory by formula."""
        return self.estimate is not None and self.estimate.fits

    @property
    def has_room(self) -> bool:
        """Whether it fits with a margin for the error of formulas."""
        known = self.estimate
        return known is not None and known.needed_bytes <= MEMORY_FRACTION * known.capacity_bytes

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key, smaller is better.

        Candidates that fit come first, by predicted time, or else by roofline and then by time without overlap. Then
        come those that do not fit, by needed memory, and last the infeasible ones.
        """
        if self.estimate is None or self.estimate.roofline is None:
            return (2,)
        roofline = self.estimate.roofline
        if not self.estimate.fits:
            return 1, self.estimate.needed_bytes
        if self.predicted_seconds is not None:
            return 0, self.predicted_seconds, self.estimate.needed_bytes
        without_overlap_seconds = roofline.compute_seconds + roofline.memory_seconds + roofline.network_seconds
        return 0, roofline.step_seconds, without_overlap_seconds, self.estimate.needed_bytes


def ranked(
    cases: Iterable[Case], chip: Chip, machine: Machine | None = None, doublings: Doublings | None = None
) -> list[Candidate]:
    """All candidates, best first: by the times that a machine is predicted to take, or else by their rooflines.

    Those that `doublings` finds not worth a prediction are left out; by default none are.
    """
    doublings = doublings or Doublings(every=True)
    candidates = []
    for case in filter(doublings.worth, cases):
        candidates.append(evaluated(case, chip, machine))
        if candidates[-1].estimate is None:
            doublings.add(case)
        elif candidates[-1].has_room:
            doublings.add(case, candidates[-1].order[1])
    return sorted(candidates, key=lambda each: each.order)


def best_per_layout(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first feasible candidate of each strategy and set of mesh axes; the others are variations of these."""
    return first_per_layout(each for each in candidates if each.estimate)


def evaluated(case: Case, chip: Chip, machine: Machine | None = None) -> Candidate:
    """Evaluate a case by formulas, on chips with these specifications; with a machine, predict its time besides."""
    try:
        cost = predict(case.strategy, case.config, case.mesh, case.resolved, case.platform)
    except Infeasible as error:
        return Candidate(case, error)
    estimate = ChipEstimate(
        cost.needed_bytes, chip.memory_bytes, formula_roofline(case, cost, chip), chip.flops_per_second
    )
    assert case.topology
    return Candidate(
        case, cost, estimate, predict_seconds(cost, machine, case.topology).step_seconds if machine else None
    )


def formula_roofline(case: Case, cost: Cost, chip: Chip) -> Roofline:
    """Roofline of a step by formulas. A pipeline bubble extends the compute time.

    FLOPs are those of the stage with the most layers, because the other stages wait for it.
    """
    assert case.topology
    devices = case.mesh.size
    bandwidths = {each: bandwidth(case.topology, chip, case.mesh, *each) for each in cost.sent}
    return Roofline(
        sum(cost.flops.values()) / devices / (1 - cost.bubble) / chip.flops_per_second,
        memory_traffic_bytes(cost.plan) / chip.memory_bytes_per_second,
        sum(float(sum(parts.values())) / bandwidths[each] for each, parts in cost.sent.items()),
    )


def memory_traffic_bytes(plan: Plan) -> int:
    """Least bytes that a device reads and writes in memory per step, if caches keep nothing from layer to layer.

    - weights: in the compute dtype, read for each microbatch in the forward and backward pass, and once more with
      `remat="full"`; each time for both halves of the batch with `halves="on"`
    - gradients: in the dtype of the parameters, written and read for each microbatch
    - state: float32 parameters and optimizer moments that the device updates, read and written once
    - activations: what layers keep for the backward pass, written and read
    """
    train, itemsize = plan.train, BYTES[plan.train.dtype]
    used = [each for each in plan.weights if is_tied(plan, each) or not each.spec.name.startswith("embedding.")]
    passes = (3 if train.remat == "full" else 2) * (2 if train.halves == "on" else 1)
    weights = passes * itemsize * sum(each.elements for each in used) * plan.shards
    activations = 2 * plan.block.kept_bytes(plan.share) * plan.layers
    state = 2 * 3 * 4 * plan.elements // plan.updates
    return train.microbatches * (weights + 2 * plan.parameter_bytes + activations) + state


@cache
def bandwidth(topology: Topology, chip: Chip, spec: MeshSpec, kind: str, axes: Axes) -> float:
    """Bytes per second that a device can send in a kind of collective along some axes of a mesh."""
    return collective_bandwidth(chip, topology_mesh(topology, spec), kind, axes)
