"""Prepares a case: compiles its step, and compares its first steps with those of one device."""

import warnings
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CompileError, reason_of
from benchmarks.cluster.processes import crossing_axes
from benchmarks.explain.estimate import DoesNotFit, estimate, estimate_from_error
from benchmarks.explain.explanations import cost_of, explanation_columns
from benchmarks.explain.local_devices import case_seconds
from benchmarks.explain.memory import planned_memory
from benchmarks.program.compiled import HLOError, Program, read_program
from benchmarks.program.deadlock import require_no_deadlock
from benchmarks.run.compilation import Clock, bytes_accessed, compile_step
from benchmarks.run.expert_load import expert_facts
from benchmarks.run.ledger import RunSettings
from benchmarks.run.live import profile_memory
from benchmarks.run.record import Record
from benchmarks.run.references import References, Stages
from strategies import Step
from strategies.costs.layer import flops_per_token

READ_ONLY = {"cpu": {"xla_backend_optimization_level": 0}, "gpu": {"xla_gpu_autotune_level": 0}}
"""Compiler options for programs that are only analysed. Optimisation of machine code can be skipped, because it changes
neither the HLO nor the planned memory. GPU kernels cannot be autotuned without a GPU."""


class Preparation:
    """Compiles steps, starts training runs, and compares their first steps with those of one device, the reference.

    Memory is profiled here, while no other case has
    arrays: cases that are timed interleaved hold their states at the same time.
    """

    def __init__(self, settings: RunSettings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self.references = References(settings.corpus_N, clock)

    def stages(self, case: Case) -> Generator[Record]:
        """Prepare a case in stages, and yield its record after every stage."""
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
                topology.kind, step, program, memory.get("memory.total_bytes", 0), cost.bubble if cost else 0.0
            )
            record = replace(record, estimate=chip_estimate)
            yield record
            if not chip_estimate.fits:
                raise DoesNotFit(str(chip_estimate))
        return record

    def _train(self, record: Record) -> Stages:
        """Stages of the first steps and of their comparison with one device."""
        training = self.references.start(record)
        # All processes must have memory for the state: one that fails in a step leaves the others in a collective.
        yield record
        with self.clock.phase("checked"):
            first_steps = self.references.first_steps(record, training)
            facts = expert_facts(record.step, training, record.case) if record.step else {}
        del training  # free its memory
        losses = {"loss_first": first_steps.losses[0], "loss_last": first_steps.losses[-1]}
        record = record.adding(losses).adding(**facts)
        yield record
        return (yield from self.references.compare(record, first_steps))

    def _profile_memory(self, record: Record, folder: Path) -> Stages:
        """Stages of the memory profile. A failure is only a warning, because the row is complete without."""
        training = self.references.start(record, batches=1)
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
