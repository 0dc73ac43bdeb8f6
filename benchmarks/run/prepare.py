"""Prepares a case: compiles its step, and compares its first steps with those of one device."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CompileError, reason_of
from benchmarks.devices.attached import planned_memory
from benchmarks.devices.topology import CPU, Topology
from benchmarks.program.compiled import HLOError, Program, read_program
from benchmarks.program.deadlock import require_no_deadlock
from benchmarks.program.explanations import cost_of, explanation_columns
from benchmarks.program.kernels import kernel_columns, kernels_of
from benchmarks.run.compilation import bytes_accessed, compile_step
from benchmarks.run.live import profile_memory
from benchmarks.run.measure import Training
from benchmarks.run.record import Record
from benchmarks.run.references import References
from benchmarks.run.states import RunSettings
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.program import DoesNotFit, estimate, estimate_from_error
from benchmarks.simulate.step import predict_seconds
from strategies import Step
from strategies.checking import FirstSteps
from strategies.costs.layer import choice_flops_per_token, flops_per_token
from strategies.step import Load

READ_ONLY = {"cpu": {"xla_backend_optimization_level": 0}, "gpu": {"xla_gpu_autotune_level": 0}}
"""Compiler options for programs that are only analysed. Optimisation of machine code can be skipped, because it changes
neither the HLO nor the planned memory. GPU kernels cannot be autotuned without a GPU."""


class Preparation:
    """The functions that prepare a case, in order. Each takes its record and returns it with what was learnt.

    All processes run them one by one and wait for each other after each, so none enters a collective alone. What a
    function leaves for the next and no row has is kept here.
    """

    def __init__(self, case: Case, settings: RunSettings, references: References) -> None:
        self.case, self.settings, self.references = case, settings, references
        self.program = Program()
        self._too_large: CompileError | None = None
        self._training: Training | None = None
        self._first_steps: FirstSteps | None = None

    @property
    def functions(self) -> list[Callable[[Record], Record]]:
        """What a run with these settings does with a case before it is timed."""
        compiling = [self.build, self.compile, self.require_compiled, self.read, self.require_safe]
        fitting = [self.estimate, self.require_fit]
        # All processes must have memory for the state: one that fails in a step leaves the others in a collective.
        checking = [self.start, self.train, self.compare, self.compare_float32]
        # Before other cases have arrays: cases that are timed interleaved hold their states at the same time.
        profiling = [self.start_one_batch, self.profile] if self.settings.memory_profile else []
        return [*compiling, *fitting, *([] if self.settings.compile_only else [*checking, *profiling])]

    def build(self, record: Record) -> Record:
        """Build the step, and predict its time if the run has a machine."""
        step, machine = self.case.build(), self.settings.machine
        predicted = case_seconds(self.case, machine) if machine else None
        flops = flops_per_token(step.config) * step.tokens_per_step
        return replace(record, step=step, predicted_seconds=predicted, model_flops_per_step=flops)

    def compile(self, record: Record) -> Record:
        """Compile the step. A compiler that gives up because a chip lacks memory says how much it needs."""
        step, case = built(record), self.case
        read_only = READ_ONLY.get(case.devices[0].platform, {}) if self.settings.compile_only else {}
        try:
            with self.references.clock.phase("compile"):
                compilation = compile_step(step, {**read_only, **dict(case.compiler_options)})
        except CompileError as error:
            if case.topology and (needed := estimate_from_error(error)):
                self._too_large = error
                return replace(record, estimate=needed)
            raise
        options = tuple(option for option in compilation.options.items() if option not in read_only.items())
        columns = {
            "compile_seconds": compilation.seconds,
            "compiled.compilations": compilation.programs,
            "compiled.bytes_accessed": bytes_accessed(compilation.program),
            **planned_memory(step, compilation.program),
        }
        return record.adding(columns, program=compilation.program, compiler_options=options)

    def require_compiled(self, record: Record) -> Record:
        """Raise the error of a compiler that has said how much memory is needed, which the record has by now."""
        if self._too_large:
            raise DoesNotFit(f"{record.estimate}: {self._too_large}") from self._too_large
        return record

    def read(self, record: Record) -> Record:
        """Read the compiled program; a warning says what could not be read."""
        step, text = built(record), record.program.as_text() or ""
        try:
            program = read_program(text, step.mesh.shape)
        except HLOError as error:
            program = Program(unread=f"the text: {error}")
        if program.unread:
            warnings.warn(f"{self.case}: its compiled program was not read: {program.unread}", stacklevel=2)
        self.program = program
        process_of = np.vectorize(lambda device: device.process_index, otypes=[int])(step.mesh.devices)
        between = program.as_row_between(axes_between(process_of, tuple(map(str, step.mesh.axis_names))))
        explained: Any = {} if program.unread else explanation_columns(self.case, program)
        one_gpu = step.mesh.size == 1 and self.case.devices[0].platform == "gpu"
        kernels = kernel_columns(kernels_of(text)) if one_gpu and not program.unread else {}
        return record.adding({**program.as_row(), **between, **explained, **kernels})

    def require_safe(self, record: Record) -> Record:
        """Check that the program cannot deadlock."""
        require_no_deadlock(built(record).mesh, self.program.concurrent)
        return record

    def estimate(self, record: Record) -> Record:
        """Estimate memory and least time on a chip that need not be present."""
        topology = self.case.topology
        if not (topology and topology.chip):
            return record
        cost, needed = cost_of(self.case), int(record.columns.get("memory.total_bytes") or 0)
        bubble = cost.plan.schedule.lost(cost.passes) if cost and cost.plan.staged else 0.0
        return replace(record, estimate=estimate(topology.kind, built(record), self.program, needed, bubble))

    def require_fit(self, record: Record) -> Record:
        """Check that the step fits into the chip's memory."""
        if record.estimate and not record.estimate.fits:
            raise DoesNotFit(str(record.estimate))
        return record

    def start(self, record: Record) -> Record:
        """Start a training run."""
        self._training = self.references.start(record)
        return record

    def train(self, record: Record) -> Record:
        """Train the first steps, and count the load of experts."""
        training, self._training = self._training, None  # its memory is freed at the end
        assert training
        with self.references.clock.phase("checked"):
            self._first_steps = self.references.first_steps(record, training)
            facts = expert_facts(built(record), training, self.case)
        losses = self._first_steps.losses
        return record.adding({"loss_first": losses[0], "loss_last": losses[-1]}).adding(**facts)

    def compare(self, record: Record) -> Record:
        """Compare the first steps with those of one device."""
        assert self._first_steps
        return self.references.compare(record, self._first_steps)

    def compare_float32(self, record: Record) -> Record:
        """Compare those of a 16-bit case in float32, too."""
        return self.references.compare_float32(record)

    def start_one_batch(self, record: Record) -> Record:
        """Start a training run whose memory is profiled."""
        self._training = self.references.start(record, batches=1)
        return record

    def profile(self, record: Record) -> Record:
        """Profile its memory. A failure is only a warning, because the row is complete without."""
        training, self._training = self._training, None
        assert training
        assert self.settings.memory_profile
        try:
            return record.adding(profile_memory(training, self.settings.memory_profile / str(self.case)))
        except OSError as error:
            warnings.warn(f"{self.case}: no memory profile was written: {reason_of(error)}", stacklevel=2)
            return record


def built(record: Record) -> Step:
    """The step of a record that has one."""
    assert record.step
    return record.step


def case_seconds(case: Case, machine: Machine) -> float | None:
    """Predicted seconds of a step; without formulas of its own, those of its hand-written twin.

    It is None without formulas, on this machine's TPUs, whose torus has an unknown shape, and on several hosts whose
    network is unknown. Other devices of this machine are numbered host by host, and hosts have equal numbers of them.
    """
    cost = cost_of(case)
    topology = case.topology or Topology(CPU, (jax.process_count(), jax.local_device_count()))
    unknown = topology.hosts > 1 and not machine.chip.network_bytes_per_second
    if cost is None or unknown or (machine.chip.torus_dims and not case.topology):
        return None
    return predict_seconds(cost, machine, topology).step_seconds


def axes_between(process_of: Int[np.ndarray, "..."], axes: Sequence[str]) -> tuple[str, ...]:
    """Mesh axes that cross process boundaries. Communication over them may go through a network.

    Args:
        process_of: process index of each device of the mesh, one dim per mesh axis.

    >>> axes_between(np.array([[0, 0], [1, 1]]), ("data", "tensor"))
    ('data',)
    """
    return tuple(axis for dim, axis in enumerate(axes) if np.diff(process_of, axis=dim).any())


def load_columns(load: Load) -> dict[str, float]:
    """The columns of a row on what the routers of a step do with one batch.

    >>> load_columns(Load(np.array([[3.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([1.0])))
    {'experts.largest_over_mean': 1.5, 'experts.dropped_fraction': 0.25, 'experts.balance_loss': 1.0}
    """
    choices_LE, probs_LE, dropped_L = (np.asarray(each, np.float64) for each in load)
    share_LE, probs_LE = (each_LE / each_LE.sum(1, keepdims=True) for each_LE in (choices_LE, probs_LE))
    experts = share_LE.shape[1]
    return {
        "experts.largest_over_mean": float(experts * share_LE.max()),
        "experts.dropped_fraction": float(dropped_L.sum() / choices_LE.sum()),
        "experts.balance_loss": float(experts * (share_LE * probs_LE).sum(1).mean()),
    }


def expert_facts(step: Step, training: Training, case: object) -> dict[str, Any]:
    """Facts of the record: columns on the load for the next batch, and model FLOPs without those of dropped choices.

    Empty for a model without experts. A failure is only a warning, because the row is complete without.
    """
    if not step.config.experts:
        return {}
    try:
        columns = load_columns(jax.device_get(step.load(training.state.params, next(training.batches))))
    except Exception as error:
        warnings.warn(f"{case}: the load of its experts could not be counted: {reason_of(error)}", stacklevel=2)
        return {}
    dropped = columns["experts.dropped_fraction"] * choice_flops_per_token(step.config)
    flops = (flops_per_token(step.config) - round(dropped)) * step.tokens_per_step
    return {"columns": columns, "model_flops_per_step": flops}
