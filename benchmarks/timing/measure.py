"""How one step is compiled, and timed in blocks of chained steps."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from benchmarks.cluster import processes
from benchmarks.failures import CompileError, Recompiled
from benchmarks.timing.equality import Trajectory
from strategies import Step
from strategies.pace import keep_pace

BLOCK_SECONDS = 0.1
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


DEFAULTS: Mapping[str, Mapping[str, str]] = {"tpu": {"xla_disable_hlo_passes": "while-loop-all-reduce-code-motion"}}
"""What XLA is told of every step on a platform, unless it is told otherwise.

On TPUs, not to move what reduces gradients out of the loop over microbatches: it would hold them whole, which zero2 and
fsdp state that they do not. For that libtpu 0.0.42.1 takes as much of the host's memory as of a chip's: with gpt3-6.7b
and zero2 it was killed at 24 GB. On three_d over fsdp and tensor it fails by a check of its own
(`while_loop_all_reduce_code_motion.cc`).
"""


def told(step: Step, options: Mapping[str, Any]) -> dict[str, Any]:
    """What XLA is told of a step, and of its variants: what is asked for, and else `DEFAULTS`."""
    return {**DEFAULTS.get(step.mesh.devices.flat[0].platform, {}), **options}


class Compilation(NamedTuple):
    """A step's program, the seconds it took, how many programs were compiled for it, and what XLA was told."""

    program: jax.stages.Compiled
    seconds: float
    programs: int
    options: Mapping[str, Any]


def compile_step(step: Step, options: Mapping[str, Any] | None = None) -> Compilation:
    """Compile from shapes alone what is called later, never compiled again.

    `options` are XLA's, by its names; they come before `DEFAULTS`.

    Raises:
        CompileError: whatever the compiler said.
    """
    all_options = told(step, options or {})
    start = time.perf_counter()
    try:
        with compilations() as compiled:
            program = step.lower().compile(all_options)
        return Compilation(program, time.perf_counter() - start, len(compiled), all_options)
    except Exception as error:
        raise CompileError(f"{type(error).__name__}: {error}") from error


class Timed(Protocol):
    """What can be timed in blocks, as a `Training` can."""

    @property
    def dispatch_seconds(self) -> float:
        """Of the latest block, in which its steps were handed to the devices."""
        ...

    def block(self, steps: int) -> float:
        """Seconds that some steps take."""
        ...


class Training:
    """A training run in progress: the compiled step, its state, and batches that are given again and again.

    Attributes:
        metrics: loss and gradient norm of the latest step, on the devices.
        dispatch_seconds: of the latest block, in which its steps were handed to the devices.
        here: whether this process takes part in its blocks. What one device does `alone` is timed in the first process,
            and the others, which may share a machine with it, wait.
    """

    def __init__(self, program: Callable[..., Any], state: Any, batches: Sequence[Any], *, alone: bool = False) -> None:
        self.program, self.state, self.batches = program, state, itertools.cycle(batches)
        self.here = processes.is_first() or not alone
        self.metrics: dict[str, jax.Array] = {}
        self.dispatch_seconds = 0.0

    def trajectory(self, steps: int) -> Trajectory:
        """Train for some steps and look at each."""
        return Trajectory.of([self._advance() for _ in range(steps)])

    def block(self, steps: int) -> float:
        """Seconds that some chained steps take, waited for once, at their end: dispatch alone says nothing."""
        if not self.here:
            return 0.0
        self.dispatch_seconds = 0.0
        start = time.perf_counter()
        for _ in range(steps):
            self._advance()
        jax.block_until_ready((self.state, self.metrics))
        return time.perf_counter() - start

    def require_finite(self, when: str) -> None:
        """Refuse a run that has left the numbers.

        Raises:
            NonFinite: names the loss and the gradient norm of the latest step.
        """
        if self.here:
            Trajectory.of([self.metrics]).require_finite(when)

    def _advance(self) -> dict[str, jax.Array]:
        """Start one more step, without waiting for it. It takes over the memory of the state."""
        start = time.perf_counter()
        self.state, self.metrics = self.program(self.state, next(self.batches))
        self.dispatch_seconds += time.perf_counter() - start
        keep_pace(self.metrics)
        return self.metrics


def steps_per_block(training: Timed) -> int:
    """So many steps that a block lasts `BLOCK_SECONDS`, next to which the clock and the wait are nothing."""
    steps = 1
    while (seconds := processes.of_first(partial(training.block, steps))) < BLOCK_SECONDS:
        steps = math.ceil(1.2 * steps * BLOCK_SECONDS / seconds)
    return steps


def trace(folder: Path, block: Callable[[], float]) -> None:
    """Have the profiler look at a block, in every process.

    Raises:
        Exception: in one of them it cannot write what it sees, or the block failed.
    """

    def open_trace() -> None:
        folder.mkdir(parents=True, exist_ok=True)  # the profiler would ask for it when the block has ended
        traced.enter_context(jax.profiler.trace(str(folder)))

    with ExitStack() as traced:
        processes.together(open_trace)
        processes.together(block)
        processes.together(traced.close)


def forget_effects() -> None:
    """Wait for what failed callbacks have left behind: JAX would when Python ends, and print what went wrong again."""
    from jax._src.dispatch import runtime_tokens  # `jax.effects_barrier` keeps what fails

    with suppress(Exception):
        runtime_tokens.block_until_ready()
    runtime_tokens.clear()


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Watch what is compiled: the names of the functions, as they come."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            compiled.append(str(kwargs.get("fun_name", "a function")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def no_compilation() -> Iterator[None]:
    """Watch that nothing is compiled.

    Raises:
        Recompiled: names the functions that were.
    """
    with compilations() as compiled:
        yield
    if compiled:
        raise Recompiled(f"compiled while it was timed: {', '.join(compiled)}; a step must be compiled once")


def bytes_accessed(program: jax.stages.Compiled) -> int | None:
    """Bytes that the compiler expects to be read and written, a loop's body once; None where it does not say."""
    facts = program.cost_analysis()
    count = facts.get("bytes accessed") if isinstance(facts, dict) else None
    return None if count is None or count < 0 else int(count)
