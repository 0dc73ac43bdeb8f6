"""The devices of this machine: the platforms that JAX looks for, their topology, and memory."""

import importlib.util
import math
import os
import pkgutil
import resource
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.placement import device_count, extents
from benchmarks.devices.topology import CPU, NO_TPU_HOST, OUR_KINDS, Topology
from strategies import Step
from strategies.mesh import Devices

GOOGLE = "0x1ae0"
"""Vendor of TPUs on the PCI bus, by which JAX finds them as well."""
PCI = Path("/sys/bus/pci/devices")
DEVICE_FILES = "accel*", "vfio/[0-9]*"
"""Files in /dev of TPUs, which containers have where they do not see the bus."""
SET_BY_JAX = "TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION"
FORCED = "JAX_FORCE_TPU_INIT"
CGROUPS_1 = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
CGROUPS_2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
"""By version of Linux control groups: folder, and names of the limit, of the usage and of its cached part."""


def skip_absent_tpus() -> None:
    """Leave libtpu unloaded where there is no TPU. Must be called before any backend starts.

    The extra `tpu` installs libtpu for its compiler. JAX then starts it on every machine: on one without TPUs it waits,
    reports that it has failed, and prints stack traces when a signal ends the process. A platform that the user chose,
    plugins of other accelerators, and anything that hints at a TPU leave JAX's choice as it is.
    """
    if getattr(jax.config, "jax_platforms", None) or tpu_hinted() or other_accelerators():
        return
    jax.config.update("jax_platforms", CPU)


def tpu_hinted(bus: Path = PCI, files: Path = Path("/dev")) -> bool:
    """Whether this machine may have TPUs: by its bus, its device files, or the environment of a TPU host."""
    ours = {*NO_TPU_HOST, *SET_BY_JAX}
    if FORCED in os.environ or any(name.startswith("TPU_") and name not in ours for name in os.environ):
        return True
    if any(file.is_file() and file.read_text().strip() == GOOGLE for file in bus.glob("*/vendor")):
        return True
    return any(True for pattern in DEVICE_FILES for _ in files.glob(pattern))


def other_accelerators() -> bool:
    """Whether a plugin of another accelerator is installed, such as of GPUs."""
    modules = importlib.util.find_spec("jax_plugins")
    paths = (modules and modules.submodule_search_locations) or ()
    return bool(entry_points(group="jax_plugins")) or any(True for _ in pkgutil.iter_modules(list(paths)))


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
        way_out = "start a whole slice, or the same number of devices in each process"
        raise ValueError(f"these {len(devices)} devices are not all of {topology}; {way_out}")
    return topology


def planned_memory(step: Step, program: jax.stages.Compiled) -> dict[str, int]:
    """Columns of a row: bytes of a step's state on one device and, if the backend reports it, the compiler's plan.

    The total is what a step needs at once: arguments, temporaries and outputs, with aliases counted once.
    """
    state = {"parameter": shard_bytes(step.state.params), "optimizer": shard_bytes(step.state[1:])}
    if plan := program.memory_analysis():
        argument, temp, output = plan.argument_size_in_bytes, plan.temp_size_in_bytes, plan.output_size_in_bytes
        alias = plan.alias_size_in_bytes
        state |= {"argument": argument, "temp": temp, "output": output, "alias": alias}
        state |= {"total": argument + temp + output - alias}
    return {f"memory.{name}_bytes": count for name, count in state.items()}


def shard_bytes(tree: Any) -> int:
    """Bytes per device of a tree of arrays or shapes with shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def device_peak_bytes() -> int | None:
    """Peak memory of any local device so far; None if the backend does not report it, as on CPU."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max((of_one["peak_bytes_in_use"] for of_one in stats if "peak_bytes_in_use" in of_one), default=None)


def host_peak_rss_bytes() -> int:
    """Peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


def states_budget_bytes() -> int | None:
    """Memory that the states of all steps in one timing group may use together; None if unknown.

    This is half of the free memory of a device, or of the host if devices are virtual. The other half is for
    temporaries.
    """
    if stats := jax.local_devices()[0].memory_stats():
        return (stats["bytes_limit"] - stats["bytes_in_use"]) // 2 if "bytes_limit" in stats else None
    free = [*free_host_bytes(), *free_cgroup_bytes()]
    return min(free) // 2 if free else None


def processes_that_fit(bytes_each: int) -> int:
    """Number of processes that need `bytes_each` of host memory and can run at once, one per core; at least 1."""
    free = min([*free_host_bytes(), *free_cgroup_bytes()], default=bytes_each)
    return max(1, min(os.cpu_count() or 1, free // bytes_each))


def free_host_bytes() -> Iterator[int]:
    """Yield the available memory of the machine, if the system reports it."""
    if (meminfo := Path("/proc/meminfo")).exists():  # not on macOS
        facts = dict(line.split(":") for line in meminfo.read_text().splitlines())
        yield 1024 * int(facts["MemAvailable"].split()[0])


def free_cgroup_bytes(root: Path = Path("/")) -> Iterator[int]:
    """Yield the memory left in each Linux control group of this process.

    A container or job may have less than its machine.

    Both versions of control groups are supported (Linux documentation: admin-guide/cgroup-v1/memory and
    admin-guide/cgroup-v2). Groups are nested. Inside a container, the outermost visible group is the container's own,
    whatever its name. Cached file contents count as used by the kernel but are reclaimed on demand, so they are added
    back.
    """
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, limit, used, cached = CGROUPS_1 if controllers else CGROUPS_2
        group = Path(name.lstrip("/"))
        for folder in (root / top / part for part in (group, *group.parents)):
            if (folder / limit).exists() and (most := (folder / limit).read_text().strip()) != "max":
                facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield int(most) - int((folder / used).read_text()) + int(facts[cached])
