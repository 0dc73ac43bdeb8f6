"""Interleaved timing of training steps.

The unit of timing is a block: one step, or several consecutive steps. A round times one block of each of the compared
steps, in random order, so drift affects all of them equally. `Training.block` reads the clock.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax

from benchmarks.cases.failures import NonFinite
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.cluster import processes
from benchmarks.run.compilation import no_compilation
from strategies import Step
from strategies.backends.pace import keep_pace
from strategies.checking import CHECKED_STEPS, FirstSteps, Recorder
from strategies.step import Metrics

BLOCK_SECONDS = 0.1
"""Least duration of a timed block."""
EXPOSED_DISPATCH = 0.01
"""Largest share of a block in which accelerators wait for the dispatch of its first step; that of others is hidden."""
STEPS_TO_HIDE_DISPATCH = 10
"""Most steps that a block gets for that purpose."""
WIDE = 0.03
"""Half width of an interval, as a fraction of the median, above which a step is timed in further rounds."""


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

    With `first_process_only`, for steps of one device, only the first process takes part in blocks. The others, which
    may share its machine, wait.
    """

    def __init__(
        self, program: Callable[..., Any], state: Any, batches: Sequence[Any], *, first_process_only: bool = False
    ) -> None:
        self.program, self.state, self.batches = program, state, itertools.cycle(batches)
        self.participates = processes.is_first() or not first_process_only
        self.metrics: dict[str, jax.Array] = {}
        self.dispatch_seconds = 0.0

    def first_steps(self, step: Step, weights: Callable[[], Sequence[Any]]) -> FirstSteps:
        """Train the first steps, which must be finite, and reduce them to what is compared with one device.

        `weights` returns those before the first step (`checking.initial_weights`).
        """
        recorder = Recorder(step)
        for batch in itertools.islice(self.batches, CHECKED_STEPS):
            recorder.before(self.state, batch)
            self._advance(batch)
            recorder.after(self.state, self.metrics)
            require_finite([self.metrics], "in the first steps")
        return recorder.first_steps(self.state, weights)

    def block(self, steps: int) -> float:
        """Run some consecutive steps and return their seconds; 0 if this process does not participate.

        The block waits for the devices once, at its end. Dispatch alone returns early.
        """
        if not self.participates:
            return 0.0
        self.dispatch_seconds = 0.0
        start = time.perf_counter()
        for _ in range(steps):
            self._advance(next(self.batches))
        jax.block_until_ready((self.state, self.metrics))
        return time.perf_counter() - start

    def require_finite(self, when: str) -> None:
        """Check that the loss and the gradient norm of the latest step are finite.

        In float16 it may have been skipped.
        """
        if self.participates:
            require_finite([self.metrics], when, may_skip=True)

    def _advance(self, batch: Any) -> dict[str, jax.Array]:
        """Dispatch one more step without waiting. The step donates the state."""
        start = time.perf_counter()
        self.state, self.metrics = self.program(self.state, batch)
        self.dispatch_seconds += time.perf_counter() - start
        keep_pace(self.metrics)
        return self.metrics


def require_finite(metrics: Sequence[Metrics], when: str, *, may_skip: bool = False) -> None:
    """Check that the losses and gradient norms of some steps are finite; `when` is where they are in the run.

    With `may_skip`, float16 steps are accepted that were skipped because gradients overflowed, if their loss is finite
    and the loss scale can still be halved.
    """
    for step in jax.device_get(metrics):
        loss, grad_norm, scale = float(step["loss"]), float(step["grad_norm"]), float(step.get("loss_scale", 1))
        overflowed = math.isfinite(loss) and not math.isfinite(grad_norm) and scale > 1
        if not (math.isfinite(loss) and math.isfinite(grad_norm)) and not (overflowed and may_skip):
            advice = f": gradients overflow with --option loss_scale={scale:g}; take a smaller one"
            raise NonFinite(f"loss {loss} and gradient norm {grad_norm} {when}{advice if overflowed else ''}")


def hides_dispatch(dispatch_seconds: float, seconds: float) -> bool:
    """Whether steps are dispatched while the devices run the one before.

    On CPUs both take the same cores. Where dispatch is most of a step, the devices wait for it, or the call for them.
    """
    return jax.default_backend() != "cpu" and dispatch_seconds <= seconds / 2


def steps_per_block(training: Timeable) -> int:
    """Number of steps that last `BLOCK_SECONDS`, so that timer and synchronisation overhead are negligible.

    Where dispatch is hidden, a block has enough steps to make that of the first negligible, as in a training loop.
    """
    steps = 1
    while (seconds := processes.broadcast_first(partial(training.block, steps))) < BLOCK_SECONDS:
        steps = math.ceil(1.2 * steps * BLOCK_SECONDS / seconds)
    dispatch_seconds = processes.broadcast_first(lambda: training.dispatch_seconds)
    if not hides_dispatch(dispatch_seconds, seconds):
        return steps
    return max(steps, min(STEPS_TO_HIDE_DISPATCH, math.ceil(dispatch_seconds / seconds / EXPOSED_DISPATCH)))


@dataclass
class BlockTimes:
    """Times of one of several interleaved steps, in seconds per step and block.

    Entries with the same index are from the same round. `error` is what ended its timing early.
    """

    steps_per_block: int
    seconds: list[float] = field(default_factory=list)
    dispatch_seconds: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def steps(self) -> int:
        """Number of timed steps."""
        return self.steps_per_block * len(self.seconds)

    @property
    def hides_dispatch(self) -> bool:
        """Whether the steps of all blocks were dispatched while the devices ran those before them."""
        return hides_dispatch(sum(self.dispatch_seconds), sum(self.seconds))

    def add_block(self, training: Timeable) -> None:
        """Time one block."""

        def block() -> float:
            with no_compilation():
                return training.block(self.steps_per_block)

        self.seconds.append(processes.broadcast_first(block) / self.steps_per_block)
        self.dispatch_seconds.append(training.dispatch_seconds / self.steps_per_block)


def time_interleaved(
    trainings: Mapping[str, Timeable], times: Mapping[str, BlockTimes], rounds: int, begin: Callable[[str], None]
) -> None:
    """Time blocks in rounds. Each round has one block of every step, in a new random order.

    A step that fails is dropped and the others continue. In a multi-process run it must fail in all processes, because
    otherwise those that wait for another one hang. `times` is filled as timing proceeds, so that an interrupt loses
    nothing. `begin` is called with the name of a step before each of its blocks.
    """
    # Differs between runs, and is the same in all processes of a run.
    seed = processes.broadcast_first(lambda: random.getrandbits(32))
    order, shuffle = list(trainings), random.Random(seed).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            begin(name)
            try:
                times[name].add_block(trainings[name])
            except Exception as error:
                times[name].error = error
        order = [name for name in order if times[name].error is None]


def timed(
    trainings: Mapping[str, Timeable], rounds: int, begin: Callable[[str], None] = lambda name: None
) -> dict[str, BlockTimes]:
    """Block times of steps by name, interleaved; the arguments are those of `time_interleaved`."""
    times = {name: BlockTimes(steps_per_block(training)) for name, training in trainings.items()}
    time_interleaved(trainings, times, rounds, begin)
    for block_times in times.values():
        if block_times.error:
            raise block_times.error
    return times


@dataclass(frozen=True)
class Interval:
    """The median of a sample, and an interval that contains the true median with 95% confidence."""

    median: float
    low: float
    high: float

    def further_rounds(self, rounds: int) -> int:
        """Rounds to add to these until half the width is about `WIDE` of the median.

        The width falls with the square root of their number.

        >>> Interval(1.0, 0.9, 1.02).further_rounds(20), Interval(1.0, 0.98, 1.02).further_rounds(20)
        (60, 0)
        """
        half_width = (self.high - self.low) / 2 / self.median
        return max(0, math.ceil(rounds * ((half_width / WIDE) ** 2 - 1) - 1e-9))

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval | None":
        """Interval of a sample; None for fewer than `MIN_ROUNDS` values.

        It lies between two order statistics and assumes no distribution: a value lies on either side of the median
        with equal probability (Conover 1999, "Practical Nonparametric Statistics", section 3.2). It covers noise within
        this process only; launches may differ by more, and `results.regress paired` compares those.
        """
        if len(values) < MIN_ROUNDS:
            return None
        from scipy.special import bdtr  # `scipy.stats` takes longer to load than JAX

        ordered, count = sorted(values), len(values)
        # The smallest k for which P(at most k values are below the median) is at least 2.5%; above 0 by `MIN_ROUNDS`.
        below = next(k for k in range(count) if bdtr(k, count, 0.5) >= 0.025)
        return cls(statistics.median(values), float(ordered[below - 1]), float(ordered[count - below]))

    @classmethod
    def of_ratios(cls, numerators: Sequence[float], denominators: Sequence[float]) -> "Interval | None":
        """Interval of the ratio of two steps' times, from blocks of the same rounds."""
        return cls.of(
            [numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=False)]
        )


def trace(folder: Path, block: Callable[[], float]) -> None:
    """Record a profiler trace of a block in every process."""

    def open_trace() -> None:
        folder.mkdir(parents=True, exist_ok=True)  # fail early: the profiler needs it only at the end
        traced.enter_context(jax.profiler.trace(str(folder)))

    with ExitStack() as traced:
        processes.run_in_all(open_trace)
        processes.run_in_all(block)
        processes.run_in_all(traced.close)
