"""Compilation of one step, and its timing in blocks of consecutive steps."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from benchmarks.cases.failures import CompileError, Recompiled
from benchmarks.cluster import processes
from benchmarks.run.equality import Trajectory
from strategies import Step
from strategies.backends.pace import keep_pace

BLOCK_SECONDS = 0.1
"""Least duration of a timed block."""
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Compilation(NamedTuple):
    """A compiled step.

    Attributes:
        program: the executable.
        seconds: compilation time.
        programs: number of programs that were compiled for it.
        options: XLA options that were used.
    """

    program: jax.stages.Compiled
    seconds: float
    programs: int
    options: Mapping[str, Any]


def compile_step(step: Step, given: Mapping[str, Any] | Sequence[tuple[str, str]] = ()) -> Compilation:
    """Compile a step ahead of time, from shapes alone.

    Args:
        step: the step.
        given: XLA options, which go before those of the step.

    Raises:
        CompileError: with the compiler's error, or what the strategy raised, which may be SystemExit.
    """
    options = step.xla_options_with(dict(given))
    start = time.perf_counter()
    try:
        with compilations() as compiled:
            program = step.lower().compile(options)
        return Compilation(program, time.perf_counter() - start, len(compiled), options)
    except (Exception, SystemExit) as error:
        raise CompileError(f"{type(error).__name__}: {error}") from error


class Timeable(Protocol):
    """Something that can be timed in blocks, such as `Training`."""

    @property
    def dispatch_seconds(self) -> float:
        """Seconds of the latest block until its steps were dispatched to the devices."""
        ...

    def block(self, steps: int) -> float:
        """Run some steps and return the seconds that they take."""
        ...


class Training:
    """A training run in progress: the compiled step, its state, and batches that repeat in a cycle.

    Attributes:
        metrics: loss and gradient norm of the latest step, on the devices.
        dispatch_seconds: seconds of the latest block until its steps were dispatched to the devices.
        participates: whether this process takes part in blocks. With `first_process_only`, for steps of one device,
            only the first process does. The others, which may share its machine, wait.
    """

    def __init__(
        self, program: Callable[..., Any], state: Any, batches: Sequence[Any], *, first_process_only: bool = False
    ) -> None:
        self.program, self.state, self.batches = program, state, itertools.cycle(batches)
        self.participates = processes.is_first() or not first_process_only
        self.metrics: dict[str, jax.Array] = {}
        self.dispatch_seconds = 0.0

    def trajectory(self, steps: int) -> Trajectory:
        """Train for some steps and return the metrics of each."""
        return Trajectory.of([self._advance() for _ in range(steps)])

    def block(self, steps: int) -> float:
        """Run some consecutive steps and return their seconds; 0 if this process does not participate.

        The block waits for the devices once, at its end. Dispatch alone returns early.
        """
        if not self.participates:
            return 0.0
        self.dispatch_seconds = 0.0
        start = time.perf_counter()
        for _ in range(steps):
            self._advance()
        jax.block_until_ready((self.state, self.metrics))
        return time.perf_counter() - start

    def require_finite(self, when: str) -> None:
        """Check that the loss and the gradient norm of the latest step are finite. In float16 it may have been skipped.

        Raises:
            NonFinite: they are not; has both numbers.
        """
        if self.participates:
            Trajectory.of([self.metrics]).require_finite(when, may_skip=True)

    def _advance(self) -> dict[str, jax.Array]:
        """Dispatch one more step without waiting. The step donates the state."""
        start = time.perf_counter()
        self.state, self.metrics = self.program(self.state, next(self.batches))
        self.dispatch_seconds += time.perf_counter() - start
        keep_pace(self.metrics)
        return self.metrics


def steps_per_block(training: Timeable) -> int:
    """Number of steps that last `BLOCK_SECONDS`, so that timer and synchronisation overhead are negligible."""
    steps = 1
    while (seconds := processes.broadcast_first(partial(training.block, steps))) < BLOCK_SECONDS:
        steps = math.ceil(1.2 * steps * BLOCK_SECONDS / seconds)
    return steps


def trace(folder: Path, block: Callable[[], float]) -> None:
    """Record a profiler trace of a block in every process.

    Args:
        folder: where the trace is written.
        block: runs the block.

    Raises:
        Exception: the block failed, or a process cannot write its trace.
    """

    def open_trace() -> None:
        folder.mkdir(parents=True, exist_ok=True)  # fail early: the profiler needs it only at the end
        traced.enter_context(jax.profiler.trace(str(folder)))

    with ExitStack() as traced:
        processes.run_in_all(open_trace)
        processes.run_in_all(block)
        processes.run_in_all(traced.close)


def forget_effects() -> None:
    """Discard the errors of failed callbacks. JAX would otherwise wait for them at exit and print them again."""
    from jax._src.dispatch import runtime_tokens  # `jax.effects_barrier` keeps failed ones

    with suppress(Exception):
        runtime_tokens.block_until_ready()
    runtime_tokens.clear()


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of functions that are compiled in the body."""
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
    """Check that nothing is compiled in the body.

    Raises:
        Recompiled: names the functions that were compiled.
    """
    with compilations() as compiled:
        yield
    if compiled:
        raise Recompiled(f"compiled while it was timed: {', '.join(compiled)}; a step must be compiled once")


def bytes_accessed(program: jax.stages.Compiled) -> int | None:
    """XLA's estimate of bytes read and written, with a loop's body counted once; None if not reported."""
    facts = program.cost_analysis()
    count = facts.get("bytes accessed") if isinstance(facts, dict) else None
    return None if count is None or count < 0 else int(count)
