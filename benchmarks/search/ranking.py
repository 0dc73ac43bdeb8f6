"""Candidates of a search ranked by predicted seconds, and their bottlenecks."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.run.pool import mapped
from benchmarks.search.rows import layout_row
from benchmarks.simulate.intervals import widths
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.queues import Timeline
from benchmarks.simulate.step import bound_seconds, predict_seconds
from strategies import Infeasible
from strategies.costs.predict import Cost, predict

UNLIMITED = 1e6
"""Factor of a resource that no longer limits anything."""
RESOURCES: Mapping[str, Mapping[str, float]] = {
    "matmuls": {"flops_per_second": UNLIMITED},
    "memory bandwidth": {"memory_bytes_per_second": UNLIMITED},
    "links inside a host": {"link_bytes_per_second": UNLIMITED},
    "network between hosts": {"network_bytes_per_second": UNLIMITED},
    "latency": {"link_seconds": 0.0, "network_seconds": 0.0},
    "launches": {"kernel_seconds": 0.0},
}
"""Resource -> factors of a machine's figures with which it is infinitely fast. The pipeline's bubble has none."""
KINDS = "pipeline", "tensor", "context", "expert"
"""Mesh axes that split more than weights and the batch. Each changes more of a step than those after it."""


@dataclass(frozen=True)
class Candidate:
    """A feasible case on a machine. Its cost by formulas and predictions are computed when they are first read."""

    case: Case
    machine: Machine

    def __getstate__(self) -> dict[str, Any]:
        """Omit `cost` and `timeline`, which are large; the receiver recomputes them."""
        return {name: value for name, value in vars(self).items() if name not in ("cost", "timeline")}

    @cached_property
    def cost(self) -> Cost:
        """What a step costs by formulas."""
        case = self.case
        return predict(case.strategy, case.config, case.mesh, case.training(), case.backend)

    @property
    def topology(self) -> Topology:
        """The devices."""
        assert self.case.topology
        return self.case.topology

    @cached_property
    def timeline(self) -> Timeline:
        """The predicted step."""
        return predict_seconds(self.cost, self.machine, self.topology)

    @cached_property
    def step_seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.timeline.step_seconds

    @cached_property
    def needed_bytes(self) -> int:
        """Memory of a device, by formulas."""
        return self.cost.needed_bytes

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """By resource, the largest first, the share of its time that the step would save if that were infinitely fast.

        Shares of several resources may overlap, or leave time that none of them saves alone.
        """
        machines = {name: self.machine.scaled(**factors) for name, factors in RESOURCES.items()}
        without = {name: predict_seconds(self.cost, machine, self.topology) for name, machine in machines.items()}
        saved = {name: self.step_seconds - timeline.step_seconds for name, timeline in without.items()}
        saved["pipeline bubble"] = self.timeline.parts.get("bubble", 0.0)
        return {name: saved[name] / self.step_seconds for name in sorted(saved, key=lambda name: -saved[name])}

    @cached_property
    def formulas(self) -> dict[str, Any]:
        """What is known of it without a machine, as JSON values."""
        cost = self.cost
        return {"needed_bytes": self.needed_bytes, "sent_bytes": float(cost.sent_bytes), "bubble": cost.bubble}

    @cached_property
    def predictions(self) -> dict[str, Any]:
        """What its machine predicts, as JSON values. `bound_seconds` is the roofline, without memory traffic."""
        peak = self.case.mesh.size * self.machine.chip.flops_per_second
        return {
            "predicted_seconds": self.step_seconds,
            "tokens_per_second": self.case.batch_size * self.case.config.sequence / self.step_seconds,
            "model_flops_utilization": self.cost.model_flops() / self.step_seconds / peak,
            "bound_seconds": bound_seconds(self.cost, self.machine, self.topology),
            "parts": dict(self.timeline.parts),
        }


class Tried(NamedTuple):
    """A candidate that was to be compiled or measured: its seconds if they are known, and what that adds to its row."""

    candidate: Candidate
    seconds: float | None
    columns: dict[str, Any]


def fastest_first(tried: Iterable[Tried]) -> list[Tried]:
    """Those with seconds, fastest first, and then those without, as predicted."""
    return sorted(tried, key=lambda one: (one.seconds is None, one.seconds or one.candidate.step_seconds))


@dataclass(frozen=True)
class Ranking:
    """All candidates of a search: those that fit with a margin for the error of formulas, fastest first; those that are
    too large; and cases without a step, each with the reason.
    """

    fitting: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...] = ()
    infeasible: tuple[tuple[Case, str], ...] = ()

    @cached_property
    def ranks(self) -> dict[Case, int]:
        """The rank of each case that fits, from 1."""
        return {candidate.case: rank for rank, candidate in enumerate(self.fitting, start=1)}

    def row(self, candidate: Candidate) -> dict[str, Any]:
        """What is known of a candidate that fits, as JSON values. Bottlenecks take a prediction for each resource."""
        known = candidate.formulas | candidate.predictions | {"waits_for": candidate.limits}
        return {"rank": self.ranks[candidate.case]} | layout_row(candidate.case) | known

    @cached_property
    def best_per_layout(self) -> list[Candidate]:
        """The fastest of each strategy and set of mesh axes, fastest first."""
        return first_of_each(self.fitting, layout)

    @cached_property
    def tied(self) -> int:
        """How many predictions, from the first, are nearer than errors of two ways to spread a step differ."""
        if not self.fitting:
            return 0
        most = math.exp(widths().pair) * self.fitting[0].step_seconds
        return sum(candidate.step_seconds <= most for candidate in self.fitting)


def ranked(cases: Iterable[Case], machine: Machine, at_once: int = 1, *, complete: bool = False) -> Ranking:
    """Rank cases by the seconds that a machine predicts, and then by memory. `at_once` processes share many cases.

    With `complete` what is known of each candidate is computed at once, and not only what ranks it.
    """
    tried = [*cases]
    fitting, too_large, infeasible = list[Candidate](), list[Candidate](), list[tuple[Case, str]]()
    for case, found in zip(tried, mapped(partial(judged, machine, complete), tried, at_once), strict=True):
        if isinstance(found, str):
            infeasible.append((case, found))
        else:
            (fitting if found.needed_bytes <= machine.usable_bytes else too_large).append(found)
    fitting.sort(key=lambda candidate: (candidate.step_seconds, candidate.needed_bytes))
    return Ranking(tuple(fitting), tuple(too_large), tuple(infeasible))


def judged(machine: Machine, complete: bool, case: Case) -> Candidate | str:
    """A case as a candidate, predicted if it fits, which takes long; or why it is infeasible."""
    candidate = Candidate(case, machine)
    try:
        if candidate.needed_bytes <= machine.usable_bytes:
            _ = candidate.predictions if complete else candidate.step_seconds
        _ = candidate.formulas if complete else None
    except Infeasible as error:
        return error.alone  # a search tries other sizes anyway, and counts reasons that are the same
    return candidate


def first_of_each(candidates: Iterable[Candidate], key: Callable[[Case], Hashable]) -> list[Candidate]:
    """The first candidate with each value of a key, in the same order."""
    first: dict[Hashable, Candidate] = {}
    for candidate in candidates:
        first.setdefault(key(candidate.case), candidate)
    return list(first.values())


def layout(case: Case) -> Hashable:
    """Its strategy and its mesh axes."""
    return case.strategy, *case.mesh.sizes


def kind(case: Case) -> str:
    """Its kind of parallelism: the axis of `KINDS` that changes its step most, or else its strategy."""
    return next((axis for axis in KINDS if axis in case.mesh.sizes), case.strategy)
