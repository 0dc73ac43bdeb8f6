"""The devices at hand: their topology, and predicted seconds of a case on them."""

import jax

from benchmarks.cases.case import Case
from benchmarks.devices.chips import CHIPS
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import CPU, OUR_KINDS, Topology
from benchmarks.explain.explanations import cost_of
from benchmarks.simulate.links import extents
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies.backends.backend import are_virtual, platform_of
from strategies.mesh import Devices


def topology_of(devices: Devices) -> Topology:
    """The topology of which these are all devices. A process counts as a host."""
    name, hosts = devices[0].device_kind, len({device.process_index for device in devices})
    if devices[0].platform == CPU:
        topology = Topology(CPU, (hosts, len(devices) // hosts) if hosts > 1 else (len(devices),))
    elif name in OUR_KINDS:
        dims = CHIPS[OUR_KINDS[name]].torus_dims
        shape = extents(devices)[:dims] if dims else (hosts, len(devices) // hosts)
        topology = Topology(OUR_KINDS[name], tuple(shape))
    else:
        like = "or take one like it: --topology h100:1x1 --set flops=165TFLOP/s --set hbm=24GiB"
        raise ValueError(f"the specifications of {name!r} are not known; known are {', '.join(OUR_KINDS)}; {like}")
    if device_count(topology) != len(devices):
        way_out = "start a whole slice, or as many devices in each process"
        raise ValueError(f"these {len(devices)} devices are not all of {topology}; {way_out}")
    return topology


def predicting_machine(name: str, topology: Topology | None) -> Machine:
    """The machine of a name or file that predicts the steps of a run.

    Args:
        name: as for `machine`.
        topology: of the devices that steps are compiled for; None for those of this process.
    """
    if topology.is_virtual if topology else are_virtual(jax.local_devices()):
        raise ValueError(f"--machine {name}: {MEASURED_ONLY}; leave --machine out")
    if topology:
        kind, platform = topology.kind, topology.platform
    else:
        here = jax.devices()[0]
        kind, platform = here.device_kind, platform_of(here)
    found = machine(name) if platform == CPU else machine(name, OUR_KINDS.get(kind, kind))
    if found.chip.platform != platform:
        raise ValueError(f"machine {found.name} is one of {found.chip.platform} devices, and these are {platform}")
    return found


MEASURED_ONLY = "virtual CPU devices share the cores of a host, so their steps are measured, not predicted"


def case_seconds(case: Case, machine: Machine) -> float | None:
    """Predicted seconds of a step; of a step that the compiler partitions, those of its hand-written twin.

    None where there are no formulas, on a torus of this machine, whose shape is not known, and on several hosts whose
    network is not known. Other local devices are numbered host by host, as many on each as this process has.
    """
    cost = cost_of(case)
    topology = case.topology or Topology(CPU, (jax.process_count(), jax.local_device_count()))
    unknown = topology.hosts > 1 and not machine.chip.network_bytes_per_second
    if cost is None or unknown or (machine.chip.torus_dims and not case.topology):
        return None
    return predict_seconds(cost, machine, topology).step_seconds
