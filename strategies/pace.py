"""A bound on how many steps a loop may dispatch ahead of virtual CPU devices.

XLA's CPU client lets 32 computations of a device be in flight (`max_inflight_computations_per_device`, cpu_client.h).
The launch of one more waits, and it waits in a thread of the pool that runs the computations, which has as many threads
as there are devices. The step that is due then finds a thread for all devices but one, these wait for the last one in a
collective, and after 40 seconds XLA ends the process: "rendezvous.cc ... Termination timeout". Load makes it likely,
for the loop runs ahead further. GPUs and TPUs launch from other threads, and are not held back.
"""

import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import jax
from jax.core import Tracer

from strategies.mesh import are_virtual

MOST_AHEAD = 8
"""A quarter of XLA's 32: each step leaves room for three other computations of the caller's. Two hide dispatch."""

KEEP = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
"""JAX's settings that must both be set for it to keep programs."""

_ahead: deque[Any] = deque()
"""One result of each of the latest steps, of all loops together: the devices are the same."""


def keep_pace(metrics: Mapping[str, Any]) -> None:
    """Wait until at most `MOST_AHEAD` of the steps dispatched so far are unfinished, where they run on virtual devices.

    `metrics` are those of the step dispatched last. Nothing waits for them where one device runs the step, where
    devices are real, or while the step is traced.
    """
    for result in metrics.values():
        if not _on_virtual_devices(result):
            return
        _warn_of_kept_programs()
        _ahead.append(result)
        break
    while len(_ahead) > MOST_AHEAD:
        oldest = _ahead.popleft()
        with suppress(Exception):  # a step that failed says so to whoever reads its results; or they were deleted
            oldest.block_until_ready()


@cache
def _warn_of_kept_programs() -> None:
    """Say once that a program from JAX's persistent cache may hang: XLA's CPU backend reads it back without an order.

    It keeps a collective and a later loop that communicates in order by something that both of them use, and gives each
    one of its own when it reads the program back (`thunk_proto_serdes.cc`). Both may then wait at once, see
    benchmarks/program/deadlock.py.
    """
    if all(getattr(jax.config, name) for name in KEEP):
        off = 'jax.config.update("jax_enable_compilation_cache", False)'
        problem = "a program from JAX's compilation cache may wait forever on virtual CPU devices"
        warnings.warn(f"{problem}: call {off} before the first step", RuntimeWarning, stacklevel=4)


def _on_virtual_devices(result: Any) -> bool:
    if not isinstance(result, jax.Array) or isinstance(result, Tracer):
        return False
    return are_virtual(result.sharding.device_set)
