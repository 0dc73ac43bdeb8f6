"""Detects collectives that may be in flight at the same time on a virtual CPU device, which can deadlock.

XLA's CPU runtime runs independent instructions concurrently, in a pool of threads (`pool_threads`). A collective blocks
its thread until every device of its group has arrived. The program's next collective starts only when the previous one
has ended. But a loop, conditional or call counts as started as soon as its first part runs in another thread
(`NodeEdge::Kind::kScheduling`, execution_graph.h). A later collective that does not depend on it may then block a
second thread in addition to the collective inside. If each device blocks two threads, a pool of one per device has none
left for the device that all others wait for. If each blocks only one, a thread is always left, because the last
device to arrive does not block. Likewise a pool with a thread per device for each collective in flight has one left.

A collective followed by a loop is ordered only in a program that the running process compiled itself, and not in one
read from JAX's persistent cache. That cache is therefore disabled (`machine.disable_compilation_cache`).

The compiler chooses the order of independent instructions, and the choice varies with sizes and versions. So each
compiled step is checked. Where a strategy can make one collective depend on the other, it does (`hooks.head_first`).
"""

import operator
import os
from collections.abc import Mapping, Sequence
from functools import reduce

import jax
from jax.sharding import Mesh

from benchmarks.cases.failures import MayDeadlock
from benchmarks.program.collectives import kind_of
from benchmarks.program.hlo import Computation, Instruction, Module
from strategies.backends.backend import are_virtual

POOL = "PJRT_NPROC"
_CALLS = (
    "body",
    "condition",
    "to_apply",
    "calls",
    "called_computations",
    "branch_computations",
    "true_computation",
    "false_computation",
)


def require_no_deadlock(mesh: Mesh, concurrent: Sequence[tuple[str, str]]) -> None:
    """Check that a program cannot deadlock on this mesh; only virtual CPU devices can."""
    if not concurrent or not are_virtual(mesh.devices.ravel()):
        return
    # Of all that is in flight at once, each but the latest is the first of a pair.
    needed = len(mesh.local_devices) * (1 + len({first for first, _ in concurrent}))
    threads = pool_threads(len(jax.local_devices(backend="cpu")))
    if threads < needed:
        first, later = concurrent[0]
        problem = f"%{later} may communicate at the same time as %{first}, and {len(concurrent) - 1} more such pairs"
        way_out = f"make one collective depend on the other, or start with {POOL}={needed}; there are {threads} threads"
        raise MayDeadlock(f"{problem}: virtual CPU devices may deadlock; {way_out}")


def pool_threads(devices: int) -> int:
    """Threads in which XLA's CPU client runs the computations of this many devices.

    Their number is `PJRT_NPROC`, or else the cores that this process may use, but at least one per device
    (`DefaultThreadPoolSize` in xla/pjrt/utils.cc). XLA ignores a `PJRT_NPROC` that is not a number.
    """
    text = os.environ.get(POOL, "")
    if text.isdecimal():
        return max(int(text), devices)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores, devices)


def concurrent_collectives(module: Module) -> list[tuple[str, str]]:
    """Pairs of instructions, by name, whose collectives may be in flight at the same time.

    The first is a loop, conditional or call with a collective inside. The second comes later in the program,
    communicates, and does not depend on the first.
    """
    communicates: dict[str, bool] = {}
    concurrent = []
    for computation in module.computations.values():  # callees come before their callers
        communicating = [each for each in computation.instructions.values() if _communicates(each, communicates)]
        communicates[computation.name] = bool(communicating)
        # Plain collectives run one after another.
        containers = [(index, each.name) for index, each in enumerate(communicating) if kind_of(each) is None]
        dependencies = _dependencies(computation, [name for _, name in containers])
        for bit, (index, name) in enumerate(containers):
            concurrent += [
                (name, later.name) for later in communicating[index + 1 :] if not dependencies[later.name] >> bit & 1
            ]
    return concurrent


def _communicates(instruction: Instruction, communicates: Mapping[str, bool]) -> bool:
    called = (name for attribute in _CALLS for name in instruction.computations(attribute))
    return kind_of(instruction) is not None or any(communicates.get(name) for name in called)


def _dependencies(computation: Computation, containers: Sequence[str]) -> dict[str, int]:
    """For each instruction, a bit mask of the containers that it depends on."""
    bits = {name: 1 << index for index, name in enumerate(containers)}
    dependencies: dict[str, int] = {}
    for instruction in computation.instructions.values() if containers else ():
        before = (dependencies[name] | bits.get(name, 0) for name in instruction.operands if name in dependencies)
        dependencies[instruction.name] = reduce(operator.or_, before, 0)
    return dependencies
