"""Limit how many steps a training loop dispatches ahead of virtual CPU devices, because too many deadlock.

XLA's CPU client allows 32 computations in flight on each device (`max_inflight_computations_per_device`, cpu_client.h).
Launching another one blocks a thread of the pool that also runs the computations, which has one thread per device. The
oldest step then has a thread for all devices but one. These devices wait in a collective for the last device, and after
40 seconds XLA ends the process with "rendezvous.cc ... Termination timeout". This is more likely on a loaded machine,
where the loop runs further ahead of the devices. GPUs and TPUs launch from other threads and are not limited.
"""

import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import jax
from jax.core import Tracer

from strategies.backends.backend import are_virtual

MOST_AHEAD = 8
"""A quarter of XLA's 32: room for three other computations per step. Two steps suffice to hide dispatch."""

KEEP = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
"""The JAX settings that together enable its persistent compilation cache."""

_ahead: deque[Any] = deque()
"""One result of each of the latest steps, of all training loops, because they share the devices."""


def keep_pace(metrics: Mapping[str, Any]) -> None:
    """Block until at most `MOST_AHEAD` of the dispatched steps are unfinished. `metrics` are the last step's results.

    It returns at once if the step runs on one device or on real devices, and while the step is traced.
    """
    for result in metrics.values():
        if not _on_virtual_devices(result):
            return
        _warn_about_cached_executables()
        _ahead.append(result)
        break
    while len(_ahead) > MOST_AHEAD:
        oldest = _ahead.popleft()
        with suppress(Exception):  # a failed step raises where its results are read; deleted results need no wait
            oldest.block_until_ready()


@cache
def _warn_about_cached_executables() -> None:
    """Warn once that a program from JAX's persistent compilation cache may deadlock on virtual CPU devices.

    In a program that this process has compiled, XLA's CPU backend orders a collective before a later loop that
    communicates through a resource that both use. When it deserialises a program, each gets its own resource
    (`thunk_proto_serdes.cc`), so the order is lost. Both may then block threads at the same time, and deadlock
    (benchmarks/program/deadlock.py).
    """
    if all(getattr(jax.config, name) for name in KEEP):
        off = 'jax.config.update("jax_enable_compilation_cache", False)'
        problem = "a program from JAX's compilation cache may wait forever on virtual CPU devices"
        warnings.warn(f"{problem}: call {off} before the first step", RuntimeWarning, stacklevel=4)


def _on_virtual_devices(result: Any) -> bool:
    if not isinstance(result, jax.Array) or isinstance(result, Tracer):
        return False
    return are_virtual(result.sharding.device_set)
