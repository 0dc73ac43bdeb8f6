"""Prepares a case: compiles its step, and compares its first steps with those of one device."""

import shutil
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CompileError, reason_of, status_of
from benchmarks.cluster import processes
from benchmarks.cluster.processes import crossing_axes
from benchmarks.explain.estimate import DoesNotFit, estimate, estimate_from_error
from benchmarks.explain.explanations import cost_of, explanation_columns
from benchmarks.explain.local_devices import case_seconds
from benchmarks.explain.memory import planned_memory
from benchmarks.program.compiled import HLOError, Program, read_program
from benchmarks.program.deadlock import require_no_deadlock
from benchmarks.run.checkpoint import checkpoint_times
from benchmarks.run.compilation import Clock, InitialStates, bytes_accessed, compile_step
from benchmarks.run.corpus import Corpus, batch
from benchmarks.run.equality import BATCHES, agreement, float32_case
from benchmarks.run.expert_load import expert_facts
from benchmarks.run.ledger import RunSettings
from benchmarks.run.live import profile_memory
from benchmarks.run.measure import Training
from benchmarks.run.record import Record
from strategies import Step
from strategies.checking import Agreement, FirstSteps
from strategies.model.gpt import flops_per_token

SEED = 0
READ_ONLY = {"cpu": {"xla_backend_optimization_level": 0}, "gpu": {"xla_gpu_autotune_level": 0}}
"""Compiler options for programs that are only analysed. Optimisation of machine code can be skipped, because it changes
neither the HLO nor the planned memory. GPU kernels cannot be autotuned without a GPU."""


Stages = Generator[Record, None, Record]
"""Yields the record after every stage, and returns the last one."""


class Preparation:
    """Compiles steps, starts training runs, and compares their first steps with those of one device, the reference.

    There is one reference for all cases with the same `Case.single`. Memory is profiled here, while no other case has
    arrays: cases that are timed interleaved hold their states at the same time.
    """

    def __init__(self, settings: RunSettings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self._initial_states = InitialStates(clock)
        self._references: dict[Case, Record | str] = {}
        self._first_steps: dict[Case, FirstSteps] = {}

    def stages(self, case: Case) -> Generator[Record]:
        """Prepare a case in stages, and yield its record after every stage.

        Raises:
            Infeasible, CaseFailure: the case cannot be built, compiled, fitted into memory or trained correctly.
        """
        step, settings = case.build(), self.settings
        flops = flops_per_token(step.config) * step.tokens_per_step
        predicted = case_seconds(case, settings.machine) if settings.machine else None
        record = Record.begin(case, compile_only=settings.compile_only)
        record = replace(record, step=step, predicted_seconds=predicted, model_flops_per_step=flops)
        yield record
        read_only = READ_ONLY.get(case.devices[0].platform, {}) if settings.compile_only else {}
        record = yield from self._compile(record, step, read_only)
        if not settings.compile_only:
            record = yield from self._train(record)
            if settings.memory_profile:
                record = yield from self._profile_memory(record, settings.memory_profile / str(case))
        yield record

    def _compile(self, record: Record, step: Step, read_only: Mapping[str, Any]) -> Stages:
        """Stages up to the analysis of the compiled program; `read_only` are compiler options that rows do not list."""
        topology = record.case.topology
        try:
            with self.clock.phase("compile"):
                compilation = compile_step(step, {**read_only, **dict(record.case.compiler_options)})
        except CompileError as error:
            if topology and (chip_estimate := estimate_from_error(error)):
                yield replace(record, estimate=chip_estimate)
                raise DoesNotFit(f"{chip_estimate}: {error}") from error
            raise
        memory = planned_memory(step, compilation.program)
        options = tuple(option for option in compilation.options.items() if option not in read_only.items())
        columns = {"compile_seconds": compilation.seconds, **memory}
        record = record.adding(columns, program=compilation.program, compiler_options=options)
        yield record
        program = self._read_program(record)
        compiled = {
            "compiled.compilations": compilation.programs,
            "compiled.bytes_accessed": bytes_accessed(compilation.program),
            **self._program_columns(record.case, step, program),
        }
        record = record.adding(compiled)
        yield record
        require_no_deadlock(step.mesh, program.concurrent)
        if topology and topology.chip:
            cost = cost_of(record.case)
            chip_estimate = estimate(
                topology.chip, step, program, memory.get("memory.total_bytes", 0), cost.bubble if cost else 0.0
            )
            record = replace(record, estimate=chip_estimate)
            yield record
            if not chip_estimate.fits:
                raise DoesNotFit(str(chip_estimate))
        return record

    def _train(self, record: Record) -> Stages:
        """Stages of the first steps and of their comparison with one device."""
        training = self.start(record)
        # All processes must have memory for the state: one that fails in a step leaves the others in a collective.
        yield record
        with self.clock.phase("checked"):
            first_steps = self.first_steps(record, training)
            facts = expert_facts(record.step, training, record.case) if record.step else {}
        if self.settings.checkpoints:
            folder = self.settings.checkpoints / str(record.case)
            record = self._checkpoint(record, training, folder)
            yield record
            shutil.rmtree(folder, ignore_errors=True)  # all processes have ended the stage, and restored from it
        del training  # free its memory
        losses = {"loss_first": first_steps.losses[0], "loss_last": first_steps.losses[-1]}
        record = record.adding(losses).adding(**facts)
        yield record
        return (yield from self._check(record, first_steps))

    def _checkpoint(self, record: Record, training: Training, folder: Path) -> Record:
        """Time checkpoints of the state. A failure is only a warning, because the row is complete without."""
        assert record.step
        try:
            with self.clock.phase("checkpoint"):
                times = checkpoint_times(record.step, training.state, record.case.single.build, folder)
            return record.adding(times)
        except Exception as error:
            warnings.warn(f"{record.case}: its checkpoint could not be timed: {reason_of(error)}", stacklevel=2)
            return record

    def _profile_memory(self, record: Record, folder: Path) -> Stages:
        """Stages of the memory profile. A failure is only a warning, because the row is complete without."""
        training = self.start(record, batches=1)
        yield record  # as in `_train`: all processes must have memory for the state
        try:
            live = profile_memory(training, folder)
        except OSError as error:
            warnings.warn(f"{record.case}: no memory profile was written: {reason_of(error)}", stacklevel=2)
            live = {}
        record = record.adding(live)
        yield record  # in any case, as many stages in all processes
        return record

    def _read_program(self, record: Record) -> Program:
        """What the compiled program does; a warning says what could not be read."""
        assert record.step
        try:
            program = read_program(record.program.as_text() or "", record.step.mesh.shape)
        except HLOError as error:
            program = Program(unread=f"the text: {error}")
        if program.unread:
            warnings.warn(f"{record.case}: its compiled program was not read: {program.unread}", stacklevel=2)
        return program

    def _program_columns(self, case: Case, step: Step, program: Program) -> dict[str, Any]:
        """Columns of a row that describe the compiled program."""
        return {
            **program.as_row(),
            **program.as_row_between(crossing_axes(step.mesh)),
            **({} if program.unread else explanation_columns(case, step.mesh, program)),
        }

    def start(self, record: Record, batches: int = BATCHES) -> Training:
        """Start a training run from the beginning of the corpus, on this many batches, which repeat."""
        assert record.step
        init = partial(self._initial_states.begin, record.case, record.step)
        return begin_training(record.step, record.program, init, self.settings.corpus_N, batches)

    def first_steps(self, record: Record, training: Training) -> FirstSteps:
        """Train the steps of a case that are compared with one device.

        Raises:
            NonFinite: a loss or a gradient norm is not finite.
        """
        assert record.step
        weights = partial(self._initial_states.weights, record.case, record.step, jax.random.key(SEED))
        return training.first_steps(record.step, weights)

    def _check(self, record: Record, first_steps: FirstSteps) -> Stages:
        """Compare the first steps with one device's. `matches_single` is False until they are shown to be equal."""
        case, step = record.case, record.step
        assert step
        if step.inexact:
            return replace(record, reason=f"not exact by design: {step.inexact}")
        if case == case.single:
            self._references[case], self._first_steps[case] = record, first_steps
        reference = self.reference(case.single)
        if isinstance(reference, str):
            return replace(record, reason=reference)
        yield record.adding({"matches_single": False})
        agrees = self.require_equal(step, first_steps, case)
        record = record.adding({"matches_single": True, **columns_of(agrees)})
        if case != case.single and (in_float32 := float32_case(case)):
            yield record.adding({"matches_single": False})
            record = record.adding({"check.float32": self._compare_float32(in_float32)})
        return record

    def _compare_float32(self, case: Case) -> str:
        """Compare the float32 step of a 16-bit case with one device's; "equal", or why it was not compared.

        Raises:
            Mismatch: it computes something else.
        """
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
        """Check that first steps equal those of the reference.

        Raises:
            Mismatch: names the first number that differs.
        """
        return agreement(step, first_steps, self._first_steps[case.single])

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

    Args:
        step: the step.
        program: the compiled step.
        init: initialises the state from a random key.
        corpus_N: the text.
        batches: number of batches, which repeat.
    """
    sizes = step.train.batch_size, step.config.sequence
    placed = [step.place(batch(corpus_N, index, *sizes)) for index in range(batches)]
    return Training(program, init(jax.random.key(SEED)), placed, first_process_only=step.mesh.size == 1)


def columns_of(agrees: Agreement) -> dict[str, int]:
    """Columns of a row on what was compared with one device."""
    return {
        "check.gradients": agrees.gradients,
        "check.below_rounding": agrees.below_rounding,
        "check.flips": agrees.flips,
    }
