"""Resolves `--remat auto`: the backward pass recomputes little if that fits, by formulas, and everything otherwise."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import jax

from benchmarks.cases.case import Case
from benchmarks.devices.topology import OUR_KINDS
from benchmarks.program.explanations import cost_of
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.machines import machine_for_run, nearest_machine
from strategies.backends.backend import are_virtual
from strategies.config import Remat

CHOICES: tuple[Remat, ...] = "dots", "full"
"""Best first. `none` keeps more than `dots`, and moves up to 36% more bytes or 1% fewer, as compiled: keeping takes
memory traffic, too (docs/experiments/2026-11-28-one-gpu.md)."""


def resolved_remats(cases: Iterable[Case], named: str | None = None) -> list[Case]:
    """Cases without `remat="auto"`, by the machine file that is named, or by the packaged one of their devices.

    Cases with the same reference on one device have the same, so that they can be compared.
    """
    given, groups = [*cases], defaultdict[Case, list[Case]](list)
    for case in given:
        groups[case.single].append(case)
    chosen = {single: best_remat(group, named) for single, group in groups.items() if single.remat == "auto"}
    return [replace(case, remat=chosen.get(case.single, case.remat)) for case in given]


def best_remat(cases: Sequence[Case], named: str | None) -> Remat:
    """What most of these cases fit with; the first where no machine is known, as of virtual devices."""
    topology = cases[0].topology
    machine = machine_for_run(named, topology) if named else packaged_machine(cases[0])
    return min(CHOICES, key=partial(too_large, cases, machine)) if machine else CHOICES[0]


def too_large(cases: Sequence[Case], machine: Machine, remat: Remat) -> tuple[int, int]:
    """How many cases do not fit by formulas, and the bytes that these need. Those without formulas do not count."""
    costs = (cost_of(replace(case, remat=remat)) for case in cases)
    needed = [cost.needed_bytes for cost in costs if cost and cost.needed_bytes > machine.usable_bytes]
    return len(needed), sum(needed)


def packaged_machine(case: Case) -> Machine | None:
    """The packaged machine of a case's devices, attached or absent; None if no machine file knows such devices."""
    topology = case.topology
    if topology.is_virtual if topology else are_virtual(jax.local_devices()):
        return None
    kind = topology.kind if topology else jax.devices()[0].device_kind
    try:
        return nearest_machine(OUR_KINDS.get(kind, kind), "meshmark")
    except ValueError:
        return None
