"""Programs that do one thing over and over on all devices of a mesh: matmuls, passes over memory, or collectives.

Legend of dims: n devices of the mesh, which split the first dim of every array.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.run.measure import Timeable
from strategies.model.attention.dense import attend
from strategies.model.attention.qkv import QKV

AXIS = "devices"
MATMULS = ((1024, 512, 128), (128, 512, 128), (1024, 64, 128), (64, 256, 256), (512, 512, 512), (64, 2048, 512))
"""Dims m, n, k of matmuls of virtual devices."""
NARROW = ((2048, 16, 128), (1024, 64, 128), (2048, 256, 512))
"""The same where a tensor axis leaves few columns, for virtual devices only."""
GRADIENTS = ((1024, 512, 128), (128, 512, 128), (512, 512, 512))
"""The same of matmuls with their gradients of weights: a third of the matmuls of a step, as of these probes."""
LARGER = 8
"""Matmuls of accelerators have dims this much larger."""
ATTENTION = ((2, 64, 8, 16), (2, 128, 8, 32), (1, 256, 8, 64), (2, 96, 8, 8), (64, 8, 8, 16))
"""Sequences, tokens, heads and head dims of attention on a device."""
COMPUTED = 3 / 4
"""Of the scores of a sequence of even length: the share that attention/dense.py computes."""
SENT_ELEMENTS = (2**10, 2**14, 2**18)
"""Elements of the operands of collectives."""
TURNS = (1, 2, 4, 16)
"""Pairs of matmuls between two collectives."""
STREAMED_BYTES = 2**22
TRANSPOSED = (384, 384)
"""Dims of a matrix, which a loop can transpose over and over. Of 256 to 768, only a power of two took longer."""
COLD_BYTES = 2**26
"""Of an array that caches do not hold."""
COLD_PASSES = 8
"""Over such an array in one run, so that what a program needs to start counts little."""
FRESH_BYTES = 2**26
Body = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Probe:
    """Something that is done over and over.

    Attributes:
        kind: "matmul", "attention", "stream", "transpose", "cold", "allocation", "turn", "dispatch", or a kind of
            collective.
        devices: that do it at the same time.
        work: FLOPs of a device, or bytes that it reads and writes, or sends; of "transpose" elements.
        calls: collectives in it.
        inverse_dim: of its matmuls, the mean of one over the contracted dim.
        inverse_columns: likewise the mean of one over the columns; of those alone that transpose no operand.
        inverse_transposed: likewise of those that transpose their first operand.
        scores: of attention, that a device computes.
        matrices: of its batches of matmuls.
        run: does it so many times, and waits for it.
    """

    kind: str
    devices: int
    work: float
    calls: int
    run: Callable[[int], None]
    inverse_dim: float = 0.0
    scores: float = 0.0
    matrices: float = 0.0
    inverse_columns: float = 0.0
    inverse_transposed: float = 0.0


class Timed(Timeable):
    """A probe as `time_interleaved` takes it."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    @property
    def dispatch_seconds(self) -> float:
        """Not measured."""
        return 0.0

    def block(self, steps: int) -> float:
        """Run the probe so many times and return its seconds."""
        begin = time.perf_counter()
        self.probe.run(steps)
        return time.perf_counter() - begin


def repeated(
    devices: int, body: Body, *shapes: tuple[int, ...], dtype: str = "float32", donated: bool = False
) -> Callable[[int], None]:
    """A compiled loop of `body` on each device, over arrays of these shapes; it returns others of the same shapes.

    Each run starts with the same arrays, or with `donated` with those that the last one has returned in their place.
    """
    mesh = jax.make_mesh((devices,), (AXIS,), devices=jax.devices()[:devices])
    split = NamedSharding(mesh, P(AXIS))
    random = np.random.default_rng(0)
    arrays = [
        jax.device_put(jnp.asarray(random.normal(size=(devices * first, *rest)) / math.sqrt(first), dtype), split)
        for first, *rest in shapes
    ]

    def loop(times: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        return lax.fori_loop(0, times[0], lambda _, carried: body(*carried), arrays)

    mapped = jax.shard_map(
        loop, mesh=mesh, in_specs=(P(), *[P(AXIS)] * len(arrays)), out_specs=P(AXIS), check_vma=False
    )
    counts = lambda times: jax.device_put(np.full(1, times, "int32"), NamedSharding(mesh, P()))  # noqa: E731
    donates = tuple(range(1, 1 + len(arrays))) if donated else ()
    program = jax.jit(mapped, donate_argnums=donates).lower(counts(1), *arrays).compile()

    def run(times: int) -> None:
        nonlocal arrays
        results = jax.block_until_ready(program(counts(times), *arrays))
        arrays = [*results] if donated else arrays

    return run


def matmuls(devices: int, dtype: str, scale: int, narrow: Sequence[tuple[int, int, int]] = ()) -> Iterator[Probe]:
    """Yield pairs of matmuls [m,k] x [k,n] x [n,k] and [k,m] x ([m,k] x [k,n]), with all dims larger by `scale`.

    Args:
        devices: that compute them.
        dtype: of their operands.
        scale: of dims.
        narrow: further dims m, n, k of both kinds.
    """
    for m, n, k in ((scale * m, scale * n, scale * k) for m, n, k in (*MATMULS, *narrow)):
        run = repeated(devices, lambda x, w, v: ((x @ w) @ v, w, v), (m, k), (k, n), (n, k), dtype=dtype)
        mean = (1 / k + 1 / n) / 2
        yield Probe("matmul", devices, 4 * m * n * k, 0, run, mean, inverse_columns=mean)
    for m, n, k in ((scale * m, scale * n, scale * k) for m, n, k in (*GRADIENTS, *narrow)):
        run = repeated(devices, lambda x, w: (x, x.T @ (x @ w)), (m, k), (k, n), dtype=dtype)
        half = 1 / n / 2
        work, mean = 4 * m * n * k, (1 / k + 1 / m) / 2
        yield Probe("matmul", devices, work, 0, run, mean, inverse_columns=half, inverse_transposed=half)


def attentions(devices: int) -> Iterator[Probe]:
    """Yield attention, forward and backward, whose scores are in memory."""
    for sequences, tokens, heads, head_dim in ATTENTION:
        run = repeated(devices, partial(_attended, head_dim), (sequences, tokens, 3, heads * head_dim))
        scores = sequences * heads * tokens**2 * COMPUTED
        matrices = (2 + 5) * 2 * sequences * heads  # there are two blocks of queries
        flops = (2 + 5) * 2 * scores * head_dim
        yield Probe("attention", devices, flops, 0, run, scores=scores, matrices=matrices)


def _attended(head_dim: int, qkv_BTCA: jax.Array) -> tuple[jax.Array]:
    mixed_BTA, backward = jax.vjp(lambda qkv: attend(QKV(qkv, head_dim)), qkv_BTCA)
    return (qkv_BTCA + backward(mixed_BTA)[0],)


def turns(devices: int) -> Iterator[Probe]:
    """Yield matmuls, several times, and then a permutation that all devices wait for."""
    m, n, k = MATMULS[1]
    ring = [(place, (place + 1) % devices) for place in range(devices)]
    for times in TURNS:

        def body(x: jax.Array, w: jax.Array, v: jax.Array, times: int = times) -> tuple[jax.Array, ...]:
            return lax.ppermute(lax.fori_loop(0, times, lambda _, x: (x @ w) @ v, x), AXIS, ring), w, v

        run = repeated(devices, body, (m, k), (k, n), (n, k))
        yield Probe("turn", devices, 4 * m * n * k * times, 0, run, (1 / k + 1 / n) / 2)


def transposes(devices: int) -> Iterator[Probe]:
    """Yield copies of a matrix into the layout of its transpose."""
    run = repeated(devices, lambda x: (x.T * 0.5 + 1,), TRANSPOSED)
    yield Probe("transpose", devices, math.prod(TRANSPOSED), 0, run)


def streams(devices: int) -> Iterator[Probe]:
    """Yield a pass that reads and writes an array."""
    run = repeated(devices, lambda x: (x * 0.5 + 1,), (STREAMED_BYTES // 4,))
    yield Probe("stream", devices, 2 * STREAMED_BYTES, 0, run)


def cold_streams(devices: int) -> Iterator[Probe]:
    """Yield passes that read and write an array which is larger than caches, in place."""

    def passes(x: jax.Array) -> tuple[jax.Array]:
        return (lax.fori_loop(0, COLD_PASSES, lambda _, x: x * 0.5 + 1, x),)

    run = repeated(devices, passes, (COLD_BYTES // 4,), donated=True)
    yield Probe("cold", devices, 2 * COLD_BYTES * COLD_PASSES, 0, run)


def allocations() -> Iterator[Probe]:
    """Yield a program on one device with large temporaries, which the system provides anew each time."""

    def filled(loops: jax.Array) -> jax.Array:
        return lax.fori_loop(0, loops, lambda _, x: x * 0.5, jnp.full(FRESH_BYTES // 4, loops + 1.0))[loops]

    none = jnp.int32(0)
    program = jax.jit(filled).lower(none).compile()

    def run(times: int) -> None:
        for _ in range(times):
            jax.block_until_ready(program(none))

    yield Probe("allocation", 1, FRESH_BYTES, 0, run)


def dispatches(devices: int) -> Iterator[Probe]:
    """Yield a program that does nothing."""
    nothing = repeated(devices, lambda x: (x,), (1,))

    def run(times: int) -> None:
        for _ in range(times):
            nothing(0)

    yield Probe("dispatch", devices, 0, 0, run)


def collectives(devices: int) -> Iterator[Probe]:
    """Yield collectives of several sizes. A reduce-scatter and an all-gather are one probe: shapes stay the same."""
    ring = [(place, (place + 1) % devices) for place in range(devices)]
    part = (devices - 1) / devices
    bodies: dict[str, tuple[Body, float, int]] = {
        "all_reduce": (lambda x: (lax.psum(x, AXIS) / devices,), 2 * part, 1),
        "reduce_scatter": (lambda x: (_scattered_and_gathered(x) / devices,), 2 * part, 2),
        "permute": (lambda x: (lax.ppermute(x, AXIS, ring),), 1, 1),
        "all_to_all": (lambda x: (lax.all_to_all(x, AXIS, 0, 0, tiled=True),), part, 1),
    }
    for kind, (body, share, calls) in bodies.items():
        for elements in SENT_ELEMENTS:
            yield Probe(kind, devices, 4 * elements * share, calls, repeated(devices, body, (elements,)))


def _scattered_and_gathered(x: jax.Array) -> jax.Array:
    return lax.all_gather(lax.psum_scatter(x, AXIS, tiled=True), AXIS, tiled=True)
