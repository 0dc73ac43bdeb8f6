"""Resolves `--remat auto`: of what the backward pass may recompute, what fits and is predicted to be fastest."""

from dataclasses import replace

import jax

from benchmarks.cases.case import Case
from benchmarks.devices.topology import OUR_KINDS
from benchmarks.program.explanations import cost_of
from benchmarks.run.prepare import case_seconds
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.machines import nearest_machine
from strategies.backends.backend import are_virtual
from strategies.config import Remat

CHOICES: tuple[Remat, ...] = "dots", "none", "full"
"""The first where nothing predicts a step, or of equals; the last where nothing fits."""


def resolved_remat(case: Case) -> Case:
    """A case without `remat="auto"`.

    Its memory is that of formulas, and its seconds are predicted by the packaged machine of its devices. Virtual
    devices and unknown ones have none, and an infeasible case has no formulas: they have the default.
    """
    if case.remat != "auto":
        return case
    choices, machine = [replace(case, remat=remat) for remat in CHOICES], machine_of(case)
    costs = {choice: cost_of(choice) for choice in choices}
    if machine is None or None in costs.values():
        return choices[0]
    fitting = [choice for choice, cost in costs.items() if cost and cost.needed_bytes <= machine.usable_bytes]
    return min(fitting, key=lambda choice: case_seconds(choice, machine) or 0.0, default=choices[-1])


def machine_of(case: Case) -> Machine | None:
    """The packaged machine of a case's devices, which need not be present; None if there is none."""
    topology = case.topology
    if topology.is_virtual if topology else are_virtual(jax.local_devices()):
        return None
    kind = topology.kind if topology else jax.devices()[0].device_kind
    try:
        return nearest_machine(OUR_KINDS.get(kind, kind), "meshmark")
    except ValueError:
        return None
