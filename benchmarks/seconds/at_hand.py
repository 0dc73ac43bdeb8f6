"""Predicted seconds of a case on the devices at hand."""

import jax

from benchmarks.cases import Case
from benchmarks.devices.topology import CPU, Topology
from benchmarks.explain.predicted import cost_of
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.predicted import predict_seconds


def case_seconds(case: Case, machine: Machine) -> float | None:
    """Predicted seconds of a step; of a step that the compiler partitions, those of its hand-written twin.

    None where there are no formulas, and on a torus of this machine, whose shape is not known. Other devices at hand
    are numbered host by host, as many on each as this process has.
    """
    cost = cost_of(case.twin or case)
    if cost is None or (machine.chip.torus_dims and not case.topology):
        return None
    topology = case.topology or Topology(CPU, (jax.local_device_count(),))
    return predict_seconds(cost, machine, topology).step_seconds
