"""Probes: compiled programs that do one thing over and over. They run unchanged on CPUs, GPUs and TPUs.

Legend of dims: m, n, k of matmuls [m,k] x [k,n]. A mesh axis `devices` splits the first dim of every array.
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.devices.chips import GPU_KINDS, GPUS
from benchmarks.simulate.kernels import tiles_filled
from benchmarks.simulate.rates import Timing

AXIS = "devices"
Body = Callable[..., tuple[Any, ...]]
MATMULS = ((1024, 512, 128), (128, 512, 128), (1024, 64, 128), (64, 256, 256), (512, 512, 512), (64, 2048, 512))
ACCELERATOR_SCALE = 8  # of dims of matmuls
TUNED_MATMULS = MATMULS[0], MATMULS[4]
"""Those in float32 on accelerators: XLA tunes each for 6 to 10 seconds on an H100."""
STREAMED_BYTES, PASSES = 2**28, 8
"""More than caches hold, and passes over it in one body, so that memory that is new to the process counts little."""
SENT_BYTES = 2**12, 2**18, 2**24  # operands of collectives
CALLS = 8
"""Collectives in one body, and on accelerators pairs of matmuls, so that an iteration of its loop counts little."""
LAUNCHES = 64
"""Kernels in one body. On accelerators one of `CALLS` kernels is compared, to show what an iteration takes: on GPUs the
host reads its condition. On CPUs XLA runs short bodies in another way, and an iteration takes next to nothing."""


class Probe:
    """A compiled loop of `body` on each device, as `time_interleaved` takes it; `body` keeps the shapes of arrays."""

    dispatch_seconds = 0.0

    def __init__(self, timing: Timing, body: Body, *shapes: tuple[int, ...]) -> None:
        self.timing = timing
        mesh = jax.make_mesh((timing.devices,), (AXIS,), devices=jax.devices()[: timing.devices])
        split, whole = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
        self.arrays = [jax.device_put(_random(timing.devices, timing.dtype, *shape), split) for shape in shapes]

        def loop(times: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            return lax.fori_loop(0, times[0], lambda _, carried: body(*carried), arrays)

        specs = {"in_specs": (P(), *[P(AXIS)] * len(shapes)), "out_specs": P(AXIS), "check_vma": False}
        self.counted = lambda times: jax.device_put(np.full(1, times, "int32"), whole)
        self.program = jax.jit(jax.shard_map(loop, mesh=mesh, **specs)).lower(self.counted(1), *self.arrays).compile()

    def block(self, steps: int) -> float:
        """Run the body `steps` times and return the seconds; for "dispatch", run the empty program `steps` times."""
        runs, times = (steps, 0) if self.timing.kind == "dispatch" else (1, steps)
        begin = time.perf_counter()
        for _ in range(runs):
            jax.block_until_ready(self.program(self.counted(times), *self.arrays))
        return time.perf_counter() - begin


def _random(devices: int, dtype: str, rows: int, *dims: int) -> jax.Array:
    """Numbers of a variance at which a chain of matmuls neither grows nor vanishes."""
    return jax.random.normal(jax.random.key(0), (devices * rows, *dims), dtype) / math.sqrt(rows)


def gpu_cores() -> int:
    """Streaming multiprocessors of the attached GPU; 0 if it is none, or of a kind that is not known."""
    kind = GPU_KINDS.get(jax.devices()[0].device_kind)
    return GPUS[kind]["core_count"] if kind else 0


def probes() -> Iterator[Probe]:
    """Yield what one device computes, reads and launches, and collectives of groups of 2, 4, 8 ... and all devices."""
    count, cores = jax.device_count(), gpu_cores()
    on_cpus = jax.default_backend() == "cpu"
    scale, tuned, pairs = (1, MATMULS, 1) if on_cpus else (ACCELERATOR_SCALE, TUNED_MATMULS, CALLS)
    for dtype, matmuls in (("bfloat16", MATMULS), ("float32", tuned)):
        for m, n, k in ((scale * m, scale * n, scale * k) for m, n, k in matmuls):
            with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
                filled = 2 / sum(1 / tiles_filled(m, columns, 1, cores) for columns in (n, k)) if cores else 1.0
                timing = Timing("matmul", 1, pairs * 4 * m * n * k, (1 / k + 1 / n) / 2, dtype, filled=filled)
                yield Probe(timing, _chain(pairs, lambda x, w, v: ((x @ w) @ v, w, v)), (m, k), (k, n), (n, k))
    yield Probe(Timing("stream", 1, PASSES * 2 * STREAMED_BYTES), _streamed, (STREAMED_BYTES // 4,))
    for launches in (LAUNCHES,) if on_cpus else (CALLS, LAUNCHES):
        yield Probe(Timing("launch", 1, launches), _chain(launches, lambda x, w: (x @ w, w)), (16, 16), (16, 16))
    yield Probe(Timing("dispatch", count, 0), lambda x: (x,), (1,))
    for devices in sorted({2**power for power in range(1, count.bit_length())} | {count} - {1}):
        for size in SENT_BYTES:
            for kind, (body, sent, calls) in _collectives(devices).items():
                timing = Timing(kind, devices, CALLS * size * sent, calls=CALLS * calls)
                yield Probe(timing, _chain(CALLS, body), (devices * math.ceil(size / 4 / devices),))


def _streamed(x: jax.Array) -> tuple[jax.Array]:
    return (lax.fori_loop(0, PASSES, lambda _, x: x * 0.5 + 1, x),)


def _chain(times: int, body: Body) -> Body:
    return lambda *arrays: reduce(lambda carried, _: body(*carried), range(times), arrays)


def _collectives(devices: int) -> dict[str, tuple[Body, float, int]]:
    """Collectives, the bytes that a device sends for each of its operand, and the calls; two kinds are one probe."""
    ring, part = [(place, (place + 1) % devices) for place in range(devices)], (devices - 1) / devices
    tiled: dict[str, Any] = {"axis_name": AXIS, "tiled": True}
    return {
        "all_reduce": (lambda x: (lax.psum(x, AXIS) / devices,), 2 * part, 1),
        "reduce_scatter": (lambda x: (lax.all_gather(lax.psum_scatter(x, **tiled), **tiled) / devices,), 2 * part, 2),
        "permute": (lambda x: (lax.ppermute(x, AXIS, ring),), 1, 1),
        "all_to_all": (lambda x: (lax.all_to_all(x, AXIS, 0, 0, tiled=True),), part, 1),
    }
