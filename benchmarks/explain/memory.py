"""What a step holds: bytes per device, of its state, as its compiler plans it, and as it was seen."""

import math
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from strategies import Step

CGROUPS_1 = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
CGROUPS_2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
"""Where control groups are, by version of Linux's, and what their limit, their use and its cached part are called."""


@dataclass(frozen=True)
class Memory:
    """Bytes per device; None where they are not known.

    Attributes:
        argument_bytes, temp_bytes, output_bytes, alias_bytes: of the compiled step, as its compiler plans them; an
            alias is an output that takes the place of an argument.
        parameter_bytes, optimizer_bytes: the part of the arguments that is the model, and the optimizer's state.
        device_peak_bytes: the most that any of the devices has held since the process began.
        host_peak_rss_bytes: the most that the process has held on the host since it began.
    """

    argument_bytes: int | None = None
    parameter_bytes: int | None = None
    optimizer_bytes: int | None = None
    temp_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    device_peak_bytes: int | None = None
    host_peak_rss_bytes: int | None = None

    @property
    def total_bytes(self) -> int | None:
        """What a step needs at once: arguments, temporaries and outputs, but an alias only once."""
        parts = (self.argument_bytes, self.temp_bytes, self.output_bytes)
        if self.alias_bytes is None or None in parts:
            return None
        return sum(part for part in parts if part is not None) - self.alias_bytes


def planned_memory(step: Step, program: jax.stages.Compiled) -> Memory:
    """What the state takes on one device, and what the compiler plans for it, where its backend says."""
    state = Memory(parameter_bytes=shard_bytes(step.state.params), optimizer_bytes=shard_bytes(step.state.optimizer))
    if (plan := program.memory_analysis()) is None:
        return state
    return replace(
        state,
        argument_bytes=plan.argument_size_in_bytes,
        temp_bytes=plan.temp_size_in_bytes,
        output_bytes=plan.output_size_in_bytes,
        alias_bytes=plan.alias_size_in_bytes,
    )


def shard_bytes(tree: Any) -> int:
    """Bytes that a tree of sharded shapes takes on one device."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def device_peak_bytes() -> int | None:
    """The most that any device has held so far; None where the backend does not say, as on CPU."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max((of_one["peak_bytes_in_use"] for of_one in stats if "peak_bytes_in_use" in of_one), default=None)


def host_peak_rss_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


def states_budget_bytes() -> int | None:
    """How much memory the states of steps that take turns may hold together; None where it is not known.

    Half of what is free on a device, or on the host where devices are virtual: the steps' temporaries need the rest.
    """
    if stats := jax.local_devices()[0].memory_stats():
        return (stats["bytes_limit"] - stats["bytes_in_use"]) // 2 if "bytes_limit" in stats else None
    free = [*free_host_bytes(), *free_cgroup_bytes()]
    return min(free) // 2 if free else None


def processes_that_fit(bytes_each: int) -> int:
    """How many that need so much of the host's memory can run at once, each on a core: one at least."""
    free = min([*free_host_bytes(), *free_cgroup_bytes()], default=bytes_each)
    return max(1, min(os.cpu_count() or 1, free // bytes_each))


def free_host_bytes() -> Iterator[int]:
    """What the machine has left, where it says."""
    if (meminfo := Path("/proc/meminfo")).exists():  # not on macOS
        facts = dict(line.split(":") for line in meminfo.read_text().splitlines())
        yield 1024 * int(facts["MemAvailable"].split()[0])


def free_cgroup_bytes(root: Path = Path("/")) -> Iterator[int]:
    """What each control group that this process is in has left: a container, or a job, may have less than its machine.

    Linux has two versions of them (its documentation: admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2). Groups
    are nested, and inside a container the outermost that is seen is the container's own, whatever its name. What is
    kept of files that were read counts as used, and makes room where it is needed.
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
