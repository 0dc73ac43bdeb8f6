"""Compares the first steps of cases with those of one device, which are trained once for all cases of equal work."""

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from benchmarks.cases.case import Case
from benchmarks.cases.failures import Mismatch, reason_of, status_of
from benchmarks.cluster import processes
from benchmarks.run.compilation import Clock, InitialStates, compile_step
from benchmarks.run.corpus import Corpus, batch
from benchmarks.run.measure import Training
from benchmarks.run.record import Record
from strategies import Step, checking
from strategies.checking import BATCHES, Agreement, FirstSteps, in_float32, is_rounded

SEED = 0


class References:
    """The training runs on one device that cases are compared with, and what starts and compares those of cases.

    There is one reference for all cases with the same `Case.single`.
    """

    def __init__(self, corpus_N: Corpus, clock: Clock) -> None:
        self.corpus_N, self.clock = corpus_N, clock
        self._initial_states = InitialStates(clock)
        self._references: dict[Case, Record | str] = {}
        self._first_steps: dict[Case, FirstSteps] = {}

    def start(self, record: Record, batches: int = BATCHES) -> Training:
        """Start a training run from the beginning of the corpus, on this many batches, which repeat."""
        assert record.step
        init = partial(self._initial_states.begin, record.case, record.step)
        return begin_training(record.step, record.program, init, self.corpus_N, batches)

    def first_steps(self, record: Record, training: Training) -> FirstSteps:
        """Train the steps of a case that are compared with one device."""
        assert record.step
        weights = partial(self._initial_states.weights, record.case, record.step, jax.random.key(SEED))
        return training.first_steps(record.step, weights)

    def compare(self, record: Record, first_steps: FirstSteps) -> Record:
        """Compare the first steps with one device's; the record says that they are equal, or why that is not known."""
        case, step = record.case, record.step
        assert step
        if step.inexact:
            return replace(record, reason=f"not exact by design: {step.inexact}")
        if case == case.single:
            self._references[case], self._first_steps[case] = record, first_steps
        reference = self.reference(case.single)
        if isinstance(reference, str):
            return replace(record, reason=reference)
        agrees = self.require_equal(step, first_steps, case)
        compared = {"gradients": agrees.gradients, "below_rounding": agrees.below_rounding, "flips": agrees.flips}
        return record.adding({"matches_single": True, **{f"check.{name}": count for name, count in compared.items()}})

    def compare_float32(self, record: Record) -> Record:
        """Compare the float32 step of a 16-bit case that equals one device, whose rounding may hide an error."""
        case = float32_case(record.case)
        if case is None or record.case == record.case.single or not record.columns.get("matches_single"):
            return record
        return record.adding({"check.float32": self._compare_float32(case)})

    def compared(self, case: Case) -> Record:
        """Compile a case and compare its first steps with one device's, without reading its program.

        Returns:
            The record. `matches_single` is True, or `reason` says why the steps were not compared.
        """
        record = self._compiled(case)
        return self.compare_float32(self.compare(record, self.first_steps(record, self.start(record))))

    def _compare_float32(self, case: Case) -> str:
        """Compare the float32 step of a 16-bit case with one device's; "equal", or why it was not compared."""
        try:
            record = processes.run_in_all(partial(self._compiled, case))
            training = processes.run_in_all(partial(self.start, record))
            first_steps = processes.run_in_all(partial(self.first_steps, record, training))
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            return f"not compared: {status_of(error)}: {reason_of(error)}"
        del training
        if isinstance(reference := self.reference(case.single), str):
            return reference
        assert record.step
        self.require_equal(record.step, first_steps, case)
        return "equal"

    def require_equal(self, step: Step, first_steps: FirstSteps, case: Case) -> Agreement:
        """Check that first steps equal those of the reference."""
        try:
            return checking.compare(step, first_steps, self._first_steps[case.single])
        except checking.Mismatch as error:
            raise Mismatch(str(error)) from error

    def abandon_reference(self, single: Case, why: str) -> str:
        """Give up a reference for this reason, and return the reason for the rows of cases that needed it."""
        self._references[single] = reason = f"not checked, for single was given up: {why}"
        return reason

    def reference(self, single: Case) -> Record | str:
        """The record of a reference, whose first steps were trained; or why there is none.

        A model may be too large for one device.
        """
        if single not in self._references:
            try:
                record, self._first_steps[single] = processes.run_in_all(partial(self._train_reference, single))
                self._references[single] = record
            except Exception as error:
                traceback.clear_frames(error.__traceback__)
                self._references[single] = f"not checked, for single ended in {status_of(error)}: {reason_of(error)}"
        return self._references[single]

    def _train_reference(self, single: Case) -> tuple[Record, FirstSteps]:
        """Compile a reference and train its first steps. Each process does so by itself."""
        record = self._compiled(single)
        return record, self.first_steps(record, self.start(record))

    def _compiled(self, case: Case) -> Record:
        """The record of a case that is compiled to be compared only."""
        step = case.build()
        with self.clock.phase("compile"):
            program = compile_step(step, case.compiler_options).program
        return replace(Record.begin(case), step=step, program=program)


def begin_training(
    step: Step, program: Callable[..., Any], init: Callable[..., Any], corpus_N: Corpus, batches: int = BATCHES
) -> Training:
    """Start a training run of a compiled step on the corpus. State and batches are the same for every strategy.

    `init` initialises the state from a random key; the batches repeat.
    """
    placed = [step.place(batch(corpus_N, index, step.train.batch_size, step.config)) for index in range(batches)]
    return Training(program, init(jax.random.key(SEED)), placed, first_process_only=step.mesh.size == 1)


def float32_case(case: Case) -> Case | None:
    """The same case in float32, in which rounding hides less; None if it is in float32 already."""
    if not is_rounded(case.training()):
        return None
    train = in_float32(case.training())
    options = tuple((name, getattr(train, name)) for name, _ in case.options)
    return replace(case, dtype="float32", options=options)
