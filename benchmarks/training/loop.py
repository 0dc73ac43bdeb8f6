"""The loop of a training run: steps, and every so often a line in the log, an evaluation and a checkpoint."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optax

from benchmarks.cli.ending import discard_output
from benchmarks.cli.outputs import cause
from benchmarks.cli.statuses import BROKEN_INPUT, BROKEN_PIPE, INTERRUPTED
from benchmarks.cli.tables import minutes
from benchmarks.cluster import processes
from benchmarks.run.measure import require_finite
from benchmarks.training.log import Log
from benchmarks.training.plan import CHECKPOINTS, Plan
from benchmarks.training.text import drawn, spread_evenly
from strategies import CheckpointError, State, Step
from strategies.checkpoints import Saving, positions, save
from strategies.core.rules import learning_rate_at
from strategies.huggingface import METADATA

STOP_SIGNALS = signal.SIGINT, signal.SIGTERM
ERASE = "\r\x1b[K"
DIVERGED = "train into another --out with a lower --learning-rate or --clip-norm"


@dataclass
class Stopwatch:
    """Measures the throughput of training alone, without evaluations and checkpoints."""

    tokens_per_step: int
    step: int = 0
    seconds: float = field(default_factory=time.perf_counter)

    def restart(self, step: int) -> None:
        """Begin again, after this step."""
        self.step, self.seconds = step, time.perf_counter()

    def tokens_per_second(self, step: int) -> float:
        """Of the steps since the last call or restart."""
        rate = (step - self.step) * self.tokens_per_step / (time.perf_counter() - self.seconds)
        self.restart(step)
        return rate


class Stopping:
    """Whether Ctrl-C or SIGTERM has ended the run: the first one stops it after the step, the second one at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals while the body runs. A signal that is ignored, as under `nohup`, stays so."""
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self.requested:
            os.write(sys.stderr.fileno(), b"\nended at once; continue from the latest checkpoint with --resume\n")
            os._exit(INTERRUPTED)
        self.requested = True
        # A handler may run in the middle of a `print`, which cannot be entered again.
        os.write(sys.stderr.fileno(), b"\nstopping: saving a checkpoint first; Ctrl-C again ends at once\n")


class Progress:
    """Prints a line for each logged step, in place on a terminal, and one for each evaluation.

    If stdout takes no more, on a full disk or into a pipe whose reader has ended, it says so, and training goes on. All
    processes but the first are `silent`.
    """

    def __init__(self, steps: int, after: int, *, silent: bool) -> None:
        self.steps, self.after, self.silent = steps, after, silent
        self.in_place = sys.stdout.isatty()
        self.start_seconds = time.perf_counter()
        self.status = 0
        """The exit status of a run that reaches its end."""

    def step(self, number: int, loss: float, tokens_per_second: float) -> None:
        """A logged step. On a terminal the next line takes its place."""
        step_seconds = (time.perf_counter() - self.start_seconds) / (number - self.after)
        left = f", about {minutes(step_seconds * (self.steps - number))} left" if number < self.steps else ""
        text = f"step {number}/{self.steps}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s{left}"
        self._print(text, end="" if self.in_place and number < self.steps else "\n")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._print(text)

    def _print(self, text: str, end: str = "\n") -> None:
        if self.silent:
            return
        try:
            print(f"{ERASE if self.in_place else ''}{text}", end=end, flush=True)
        except OSError as error:
            self.silent, self.status = True, BROKEN_PIPE if isinstance(error, BrokenPipeError) else BROKEN_INPUT
            discard_output()
            said = f"stdout cannot be written: {cause(error)}; training goes on, and its log has every line"
            with suppress(OSError):
                print(said, file=sys.stderr, flush=True)


@dataclass
class Run:
    """A training run on its way. The position is the number of steps so far, and of the batches that were used."""

    plan: Plan
    step: Step
    log: Log | None  # in the first process
    progress: Progress
    stopping: Stopping
    position: int
    saved: int | None = None  # the position of the latest checkpoint
    saving: Saving | None = None  # the latest save, which may still be running
    failed: CheckpointError | None = None  # the latest save that failed, in a run of one process, which goes on

    def train(self, state: State) -> bool:
        """Train to the end, or until it is told to stop; save the state and wait until it is on disk.

        The result says whether it has reached the end.
        """
        try:
            self._save(self._train(state))
        finally:
            if self.saving:
                self.saving.wait()
        if self.failed:
            there = ", ".join(map(str, positions(self.plan.out / CHECKPOINTS))) or "none"
            raise CheckpointError(f"{self.failed}; the checkpoints that are there: {there}")
        return self.position == self.plan.steps

    def _train(self, state: State) -> State:
        """Train, and return the last state."""
        stopwatch = Stopwatch(self.step.tokens_per_step)
        if self.position == 0:
            self._evaluate(state)
        stopwatch.restart(self.position)
        logged, metrics = self.position, {}
        while self.position < self.plan.steps and not self._stops():
            state, metrics = self.step(state, self.step.place(self._batch(self.position)))
            self.position += 1
            evaluates, saves = self._due(self.plan.evaluate_every), self._due(self.plan.checkpoint_every)
            if evaluates or saves or self.position % self.plan.log_every == 0:
                with self._failures_said():
                    if self.saving:
                        self.saving.check()
                self._log(state, metrics, stopwatch)
                logged = self.position
            if evaluates:
                self._evaluate(state)
            if saves:
                self._save(state)
            if evaluates or saves:
                stopwatch.restart(self.position)
        if logged != self.position:  # told to stop: what is saved is checked and logged
            self._log(state, metrics, stopwatch)
        return state

    def _due(self, every: int | None) -> bool:
        """Whether something that is due every N steps, and at the end, is due now."""
        return self.position == self.plan.steps or (every is not None and self.position % every == 0)

    def _stops(self) -> bool:
        """Whether to stop before the next step. Several processes agree on it at logged steps."""
        if processes.count() == 1:
            return self.stopping.requested
        return self._due(self.plan.log_every) and processes.any_of(lambda: self.stopping.requested)

    def _batch(self, index: int) -> Any:
        plan = self.plan
        return drawn(plan.text.training_N, plan.seed, index, plan.train.batch_size, plan.case.config.sequence)

    def _log(self, state: State, metrics: Any, stopwatch: Stopwatch) -> None:
        known = {name: float(metric) for name, metric in metrics.items()}  # waits for the step
        rate = stopwatch.tokens_per_second(self.position)
        updates = int(optax.tree_utils.tree_get(state.optimizer, "count"))
        learning_rate = float(learning_rate_at(self.plan.train, np.asarray(max(updates - 1, 0))))
        self._write("step", **known, learning_rate=learning_rate, tokens_per_second=rate)
        self.progress.step(self.position, known["loss"], rate)
        require_finite([metrics], f"at step {self.position}; {DIVERGED}", may_skip=True)

    def _evaluate(self, state: State) -> None:
        """The mean loss on the text that is held out."""
        plan = self.plan
        sizes = plan.evaluation_batches, plan.train.batch_size, plan.case.config.sequence
        batches = spread_evenly(plan.text.validation_N, *sizes)
        # One after another: virtual devices must not have too many programs in flight (strategies/backends/pace.py).
        losses = [float(self.step.evaluate(state.params, self.step.place(batch))) for batch in batches]
        loss = sum(losses) / len(losses)
        self._write("evaluation", loss=loss)
        self.progress.say(f"step {self.position}/{plan.steps}: validation loss {loss:.4f}")

    def _save(self, state: State) -> None:
        """Save the state, unless it is saved already, without waiting until it is on disk."""
        if self.saved != self.position:
            folder = self.plan.out / CHECKPOINTS
            metadata = {"recipe": self.plan.recipe, "preset": self.plan.case.preset}
            metadata |= {METADATA: self.plan.huggingface} if self.plan.huggingface else {}
            with self._failures_said():
                if self.saving:
                    self.saving.wait()
            with self._failures_said():
                self.saving = save(
                    self.step, state, folder, position=self.position, metadata=metadata, keep=self.plan.keep
                )
                self.saved = self.position

    @contextmanager
    def _failures_said(self) -> Iterator[None]:
        """Say at once that a save has failed.

        A run of one process goes on, and saves again when the next one is due.
        """
        try:
            yield
        except CheckpointError as error:
            if processes.count() > 1:
                raise
            self.saving, self.failed = None, error
            print(f"\n{error}; training goes on, and saves again when a checkpoint is due", file=sys.stderr, flush=True)

    def _write(self, kind: str, **facts: Any) -> None:
        if self.log:
            self.log.write(kind, step=self.position, **facts)
