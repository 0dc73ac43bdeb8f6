"""Memory of a step: bytes per device of its state, as planned by the compiler, and as observed."""

import math
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from strategies import Step

CGROUPS_1 = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
CGROUPS_2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
"""By version of Linux control groups: folder, and names of the limit, of the usage and of its cached part."""


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

    Args:
        root: root of the file system, for tests.
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
