"""Prepares a case: compiles its step, checks it against one device, and starts its training."""

import shutil
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.cases.case import Case, options_of
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
from benchmarks.run.equality import BATCHES, CHECKED_STEPS, Trajectory
from benchmarks.run.expert_load import expert_facts
from benchmarks.run.live import profile_memory
from benchmarks.run.measure import Training
from benchmarks.run.record import RESOLVED, Record
from benchmarks.simulate.machine import Machine
from strategies import Step
from strategies.model.gpt import flops_per_token

SEED = 0
READ_ONLY = {"cpu": {"xla_backend_optimization_level": 0}, "gpu": {"xla_gpu_autotune_level": 0}}
"""Compiler options for programs that are only analysed. Optimisation of machine code can be skipped, because it changes
neither the HLO nor the planned memory. GPU kernels cannot be autotuned without a GPU."""


@dataclass(frozen=True)
class Entry:
    """A case in progress, on its way to a row. Every stage makes a new one.

    Attributes:
        record: what is known about the case so far.
        step: its step, once built.
        program: its compiled step.
    """

    record: Record
    step: Step | None = None
    program: Any = None

    @classmethod
    def begin(cls, case: Case, *, compile_only: bool = False) -> "Entry":
        """A case of which nothing is known."""
        return cls(Record.begin(case, compile_only=compile_only))

    @property
    def case(self) -> Case:
        """The case."""
        return self.record.case

    def with_facts(self, **facts: Any) -> "Entry":
        """The entry with further fields of its record."""
        return replace(self, record=replace(self.record, **facts))


Stages = Generator[Entry, None, Entry]
"""Yields the entry after every stage, and returns the last one."""


class Preparation:
    """Compiles steps, starts their training, and compares them with one device.

    The reference is prepared once per workload. Memory is profiled here, because no other case has arrays yet: steps
    that are timed interleaved have their states side by side.
    """

    def __init__(
        self,
        corpus_N: Corpus,
        clock: Clock,
        memory_profile: Path | None = None,
        *,
        checkpoints: Path | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.corpus_N, self.clock, self.memory_profile, self.checkpoints = corpus_N, clock, memory_profile, checkpoints
        self.machine = machine
        self._initial_states = InitialStates(clock)
        self._references: dict[Case, Entry | str] = {}
        self._trajectories: dict[Case, Trajectory] = {}

    def stages(self, case: Case, *, compile_only: bool) -> Generator[Entry]:
        """Prepare a case in stages, and yield its entry after every stage.

        Args:
            case: the case.
            compile_only: compile and analyse the step, but run nothing.

        Raises:
            Infeasible, CaseFailure: the case cannot be built, compiled, fitted into memory or trained correctly.
        """
        step = case.build()
        entry = replace(Entry.begin(case, compile_only=compile_only), step=step)
        flops = flops_per_token(step.config) * step.tokens_per_step
        resolved = {name: getattr(step.train, name) for name in RESOLVED if name in options_of(case.strategy)}
        known = {name: value for name, value in resolved.items() if value != "auto"}
        predicted = case_seconds(case, self.machine) if self.machine else None
        entry = entry.with_facts(predicted_seconds=predicted, model_flops_per_step=flops, **known)
        yield entry
        read_only = READ_ONLY.get(case.devices[0].platform, {}) if compile_only else {}
        entry = yield from self._compile(entry, step, read_only)
        if not compile_only:
            entry = yield from self._train(entry)
            if self.memory_profile:
                entry = yield from self._profile_memory(entry, self.memory_profile / str(case))
        yield entry

    def _compile(self, entry: Entry, step: Step, read_only: Mapping[str, Any]) -> Stages:
        """Stages up to the analysis of the compiled program; `read_only` are compiler options that rows do not list."""
        topology = entry.case.topology
        try:
            with self.clock.phase("compile"):
                compilation = compile_step(step, {**read_only, **dict(entry.case.compiler_options)})
        except CompileError as error:
            if topology and (chip_estimate := estimate_from_error(error)):
                yield entry.with_facts(estimate=chip_estimate)
                raise DoesNotFit(f"{chip_estimate}: {error}") from error
            raise
        entry = replace(entry, program=compilation.program)
        memory = planned_memory(step, compilation.program)
        options = tuple(option for option in compilation.options.items() if option not in read_only.items())
        entry = entry.with_facts(compile_seconds=compilation.seconds, memory=memory, compiler_options=options)
        yield entry
        program = self._read_program(entry)
        compiled = {
            "compiled.compilations": compilation.programs,
            "compiled.bytes_accessed": bytes_accessed(compilation.program),
            **self._program_columns(entry.case, step, program),
        }
        entry = entry.with_facts(compiled=compiled)
        yield entry
        require_no_deadlock(step.mesh, program.concurrent)
        if topology and topology.chip:
            cost = cost_of(entry.case)
            chip_estimate = estimate(topology.chip, step, program, memory, cost.bubble if cost else 0.0)
            entry = entry.with_facts(estimate=chip_estimate)
            yield entry
            if not chip_estimate.fits:
                raise DoesNotFit(str(chip_estimate))
        return entry

    def _train(self, entry: Entry) -> Stages:
        """Stages of the first steps and of their comparison with one device."""
        training = self.start(entry)
        # All processes must have memory for the state: one that fails in a step leaves the others in a collective.
        yield entry
        with self.clock.phase("checked"):
            trajectory = training.trajectory(CHECKED_STEPS)
            facts = expert_facts(entry.step, training, entry.case) if entry.step else {}
        if self.checkpoints:
            folder = self.checkpoints / str(entry.case)
            entry = self._checkpoint(entry, training, folder)
            yield entry
            shutil.rmtree(folder, ignore_errors=True)  # all processes have ended the stage, and restored from it
        del training  # free its memory
        entry = entry.with_facts(loss_first=trajectory.losses[0], loss_last=trajectory.losses[-1], **facts)
        yield entry
        trajectory.require_finite("in the first steps")
        return (yield from self._check(entry, trajectory))

    def _checkpoint(self, entry: Entry, training: Training, folder: Path) -> Entry:
        """Time checkpoints of the state. A failure is only a warning, because the row is complete without."""
        assert entry.step
        try:
            with self.clock.phase("checkpoint"):
                times = checkpoint_times(entry.step, training.state, entry.case.single.build, folder)
            return entry.with_facts(checkpoint=times)
        except Exception as error:
            warnings.warn(f"{entry.case}: its checkpoint could not be timed: {reason_of(error)}", stacklevel=2)
            return entry

    def _profile_memory(self, entry: Entry, folder: Path) -> Stages:
        """Stages of the memory profile. A failure is only a warning, because the row is complete without."""
        training = self.start(entry, batches=1)
        yield entry  # as in `_train`: all processes must have memory for the state
        try:
            live = profile_memory(training, folder)
        except OSError as error:
            warnings.warn(f"{entry.case}: no memory profile was written: {reason_of(error)}", stacklevel=2)
            live = {}
        entry = entry.with_facts(memory=replace(entry.record.memory, **live))
        yield entry  # in any case, as many stages in all processes
        return entry

    def _read_program(self, entry: Entry) -> Program:
        """What the compiled program does; a warning says what could not be read."""
        assert entry.step
        try:
            program = read_program(entry.program.as_text() or "", entry.step.mesh.shape)
        except HLOError as error:
            program = Program(unread=f"the text: {error}")
        if program.unread:
            warnings.warn(f"{entry.case}: its compiled program was not read: {program.unread}", stacklevel=2)
        return program

    def _program_columns(self, case: Case, step: Step, program: Program) -> dict[str, Any]:
        """Columns of a row that describe the compiled program."""
        return {
            **program.as_row(),
            **program.as_row_between(crossing_axes(step.mesh)),
            **({} if program.unread else explanation_columns(case, step.mesh, program)),
        }

    def start(self, entry: Entry, batches: int = BATCHES) -> Training:
        """Start a training run on the corpus from its beginning, with so many batches, which repeat."""
        assert entry.step
        init = partial(self._initial_states.begin, entry.case, entry.step)
        return begin_training(entry.step, entry.program, init, self.corpus_N, batches)

    def _check(self, entry: Entry, trajectory: Trajectory) -> Stages:
        """Compare the first steps with one device's. `matches_single` is False until they are shown to be equal."""
        case = entry.case
        if entry.step and entry.step.inexact:
            return entry.with_facts(reason=f"not exact by design: {entry.step.inexact}")
        if case == case.single:
            self._references[case], self._trajectories[case] = entry, trajectory
        reference = self.reference(case.single)
        if isinstance(reference, str):
            return entry.with_facts(reason=reference)
        yield entry.with_facts(matches_single=False)
        self.require_equal(trajectory, case)
        return entry.with_facts(matches_single=True)

    def require_equal(self, trajectory: Trajectory, case: Case) -> None:
        """Check that first steps equal those of the reference.

        Raises:
            Mismatch: names the first step that differs.
        """
        trajectory.require_equal(self._trajectories[case.single], case)

    def abandon_reference(self, single: Case, why: str) -> str:
        """Give up a reference for this reason, and return the reason for the rows of cases that needed it."""
        self._references[single] = reason = f"not checked, for single was given up: {why}"
        return reason

    def reference(self, single: Case) -> Entry | str:
        """The reference of a workload, which is `single` with trained first steps; or why there is none.

        A model may be too large for one device.
        """
        if single not in self._references:
            try:
                entry, self._trajectories[single] = processes.run_in_all(partial(self._first_steps, single))
                self._references[single] = entry
            except Exception as error:
                traceback.clear_frames(error.__traceback__)
                self._references[single] = f"not checked, for single ended in {status_of(error)}: {reason_of(error)}"
        return self._references[single]

    def _first_steps(self, single: Case) -> tuple[Entry, Trajectory]:
        """Compile a reference and train its first steps. Each process has one of its own, so it needs no other."""
        step = single.build()
        with self.clock.phase("compile"):
            program = compile_step(step, single.compiler_options).program
        entry = Entry(Record.begin(single), step, program)
        return entry, first_steps(self.start(entry))


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


def first_steps(training: Training) -> Trajectory:
    """Train the steps that are checked.

    Raises:
        NonFinite: a loss or gradient norm is not finite.
    """
    trajectory = training.trajectory(CHECKED_STEPS)
    trajectory.require_finite("in the first steps")
    return trajectory
