"""The search space ranked by predicted seconds, and what limits the best."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.search.candidates import MEMORY_FRACTION, Doublings, first_per_layout, layout_cells
from benchmarks.seconds.machine import Constants, Machine
from benchmarks.seconds.predicted import bound_seconds, predict_seconds
from benchmarks.seconds.timeline import Timeline
from strategies import Infeasible
from strategies.costs.predict import Cost, predict

ENDLESS = 1e6
"""Factor of a resource that no longer limits anything."""
MOST_ERROR = 0.99
"""A time of which the prediction is off by more has no upper end."""


@dataclass(frozen=True)
class Choice:
    """A candidate with its prediction.

    Attributes:
        case: the candidate.
        cost: by formulas.
        timeline: predicted.
        bound_seconds: the least time of the step.
    """

    case: Case
    cost: Cost
    timeline: Timeline
    bound_seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table that say how the step is spread."""
        return layout_cells(self.case)

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.timeline.step_seconds

    @property
    def needed_bytes(self) -> int:
        """Memory of a device, by formulas."""
        return self.cost.needed_bytes

    @property
    def tokens_per_second(self) -> float:
        """Predicted tokens per second of all devices."""
        return self.case.batch_size * self.case.config.sequence / self.step_seconds

    def utilization(self, machine: Machine) -> float:
        """Predicted model FLOPs utilization."""
        return self.cost.model_flops() / self.step_seconds / self.case.mesh.size / machine.chip.flops_per_second

    def as_row(self, machine: Machine) -> dict[str, Any]:
        """How the step is spread and how fast it is predicted to be, as JSON values."""
        return {
            "strategy": self.case.strategy,
            "mesh": str(self.case.mesh),
            "microbatches": self.case.microbatches,
            "remat": self.case.remat,
            "options": dict(self.case.options),
            "predicted_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
            "model_flops_utilization": self.utilization(machine),
        }


@dataclass(frozen=True)
class Choices:
    """All candidates: those that fit with room, fastest first, those that do not, and why the others are infeasible."""

    best: tuple[Choice, ...]
    larger: tuple[tuple[Case, Cost], ...]
    problems: tuple[str, ...]

    @property
    def infeasible(self) -> int:
        """How many are infeasible."""
        return len(self.problems)

    @property
    def too_large(self) -> int:
        """How many are too large."""
        return len(self.larger)

    def tied(self, error: float) -> int:
        """How many predictions, from the first, differ by less than their errors. They may be in any order."""
        if not self.best:
            return 0
        low, high = plausible(error)
        return sum(each.step_seconds * low <= self.best[0].step_seconds * high for each in self.best)

    def of_each_layout(self) -> list[Choice]:
        """The fastest of each strategy and set of mesh axes, fastest first."""
        return first_per_layout(self.best)


def plausible(error: float) -> tuple[float, float]:
    """Factors of a predicted time between which the time is, if the prediction is off by its mean error.

    >>> [round(factor, 2) for factor in plausible(0.2)]
    [0.83, 1.25]
    """
    return 1 / (1 + error), 1 / (1 - min(error, MOST_ERROR))


def advised(cases: Iterable[Case], machine: Machine, topology: Topology, doublings: Doublings | None = None) -> Choices:
    """Predict all candidates on the devices of a topology.

    Args:
        cases: the candidates, those with fewer microbatches before those with more.
        machine: predicts their seconds.
        topology: the devices.
        doublings: says which of them to leave out; by default none.
    """
    doublings = doublings or Doublings(every=True)
    best: list[Choice] = []
    larger: list[tuple[Case, Cost]] = []
    problems: list[str] = []
    for case in filter(doublings.worth, cases):
        try:
            cost = predict(case.strategy, case.config, case.mesh, case.resolved, case.platform)
        except Infeasible as error:
            problems.append(str(error))
            doublings.add(case)
            continue
        if cost.needed_bytes > usable_bytes(machine):
            larger.append((case, cost))
            continue
        best.append(predicted(case, cost, machine, topology))
        doublings.add(case, best[-1].step_seconds)
    best.sort(key=lambda each: (each.step_seconds, each.needed_bytes))
    return Choices(tuple(best), tuple(larger), tuple(problems))


def usable_bytes(machine: Machine) -> float:
    """Memory that a candidate may need by formulas, with a margin for their error."""
    return MEMORY_FRACTION * machine.chip.memory_bytes


def predicted(case: Case, cost: Cost, machine: Machine, topology: Topology) -> Choice:
    """A candidate with its prediction."""
    return Choice(case, cost, predict_seconds(cost, machine, topology), bound_seconds(cost, machine, topology))


def predicted_case(case: Case, machine: Machine, topology: Topology) -> Choice:
    """A case with its prediction.

    Raises:
        Infeasible: there is no such step.
    """
    cost = predict(case.strategy, case.config, case.mesh, case.resolved, case.platform)
    return predicted(case, cost, machine, topology)


def limits(choice: Choice, machine: Machine, topology: Topology) -> dict[str, float]:
    """What the step waits for: the share of its time that each resource would save if it were infinitely fast.

    Shares of several resources may overlap, or leave time that none of them saves alone.
    """
    saved = {name: waiting_seconds(choice, name, machine, topology) / choice.step_seconds for name in RESOURCES}
    return dict(sorted(saved.items(), key=lambda each: -each[1]))


def waiting_seconds(choice: Choice, resource: str, machine: Machine, topology: Topology) -> float:
    """How much less time the step would take if a resource were infinitely fast."""
    if resource == BUBBLE:
        return choice.timeline.parts.get("bubble", 0.0)
    return choice.step_seconds - predict_seconds(choice.cost, RESOURCES[resource](machine), topology).step_seconds


def _with_chip(machine: Machine, **specifications: float) -> Machine:
    return replace(machine, chip=replace(machine.chip, **specifications))


def _with_constants(machine: Machine, **constants: float) -> Machine:
    changed: Constants = replace(machine.constants, **constants)
    return replace(machine, constants=changed)


BUBBLE = "pipeline bubble"
RESOURCES: Mapping[str, Callable[[Machine], Machine]] = {
    "matmuls": lambda its: replace(its, matmul_flops_per_second=its.matmul_flops_per_second * ENDLESS),
    "memory bandwidth": lambda its: _with_chip(its, memory_bytes_per_second=its.chip.memory_bytes_per_second * ENDLESS),
    "links inside a host": lambda its: _with_chip(its, link_bytes_per_second=its.chip.link_bytes_per_second * ENDLESS),
    "network between hosts": lambda its: _with_chip(
        its, network_bytes_per_second=its.chip.network_bytes_per_second * ENDLESS
    ),
    "latency": lambda its: _with_constants(its, link_seconds=0.0, network_seconds=0.0),
    "launches": lambda its: _with_constants(its, kernel_seconds=0.0),
    BUBBLE: lambda its: its,
}
"""What a step may wait for -> the machine on which it is infinitely fast."""
