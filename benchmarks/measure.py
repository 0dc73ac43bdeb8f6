"""What one step costs: what its compiler plans, and how long blocks of chained steps take."""

import itertools
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax

from benchmarks.check import Trajectory
from benchmarks.failures import CompileError, Recompiled
from benchmarks.record import Memory
from strategies import Step

BLOCK_SECONDS = 0.05
MIN_BLOCKS = 5
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def compile_step(step: Step) -> tuple[jax.stages.Compiled, float]:
    """The program itself, from shapes alone, and the seconds it took. It is what is called later, never compiled again.

    Raises:
        CompileError: whatever the compiler said.
    """
    start = time.perf_counter()
    try:
        return step.lower().compile(), time.perf_counter() - start
    except Exception as error:
        raise CompileError(f"{type(error).__name__}: {error}") from error


class Training:
    """A training run in progress: the compiled step, its state, and batches that are given again and again.

    Attributes:
        metrics: loss and gradient norm of the latest step, on the devices.
    """

    def __init__(self, program: Callable[..., Any], state: Any, batches: Sequence[Any]) -> None:
        self.program, self.state, self.batches = program, state, itertools.cycle(batches)
        self.metrics: dict[str, jax.Array] = {}

    def trajectory(self, steps: int) -> Trajectory:
        """Train for some steps and look at each."""
        return Trajectory.of([self._advance() for _ in range(steps)])

    def block(self, steps: int) -> float:
        """Seconds that some chained steps take, waited for once, at their end: dispatch alone says nothing."""
        start = time.perf_counter()
        for _ in range(steps):
            self._advance()
        jax.block_until_ready((self.state, self.metrics))
        return time.perf_counter() - start

    def _advance(self) -> dict[str, jax.Array]:
        """Start one more step, without waiting for it. It takes over the memory of the state."""
        self.state, self.metrics = self.program(self.state, next(self.batches))
        return self.metrics


def steps_per_block(training: Training) -> int:
    """So many steps that a block lasts `BLOCK_SECONDS`, next to which the clock and the wait are nothing."""
    steps = 1
    while (seconds := training.block(steps)) < BLOCK_SECONDS:
        steps = math.ceil(1.2 * steps * BLOCK_SECONDS / seconds)
    return steps


def time_blocks(training: Training, steps: int, budget_seconds: float) -> tuple[float, ...]:
    """Seconds per step of one block after another until the budget is spent, and of `MIN_BLOCKS` at least.

    Raises:
        Recompiled: something was compiled meanwhile.
    """
    blocks: list[float] = []
    with no_compilation():
        while len(blocks) < MIN_BLOCKS or sum(blocks) < budget_seconds:
            blocks.append(training.block(steps))
    return tuple(seconds / steps for seconds in blocks)


@contextmanager
def no_compilation() -> Iterator[None]:
    """Watch that nothing is compiled.

    Raises:
        Recompiled: names the functions that were.
    """
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            compiled.append(str(kwargs.get("fun_name", "a function")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    if compiled:
        raise Recompiled(f"compiled while it was timed: {', '.join(compiled)}; a step must be compiled once")


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
    held = [stats["peak_bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    return max(held, default=None)


def host_peak_rss_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB
