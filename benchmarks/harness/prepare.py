"""From a case to a step that is compiled, known to be right, and ready to be timed."""

import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from benchmarks.cases import Case
from benchmarks.cluster import processes
from benchmarks.cluster.processes import crossing
from benchmarks.explain.estimate import DoesNotFit, estimate, refused
from benchmarks.explain.explanations import explained
from benchmarks.explain.memory import planned_memory
from benchmarks.failures import CompileError, reason_of, status_of
from benchmarks.harness.clock import Clock
from benchmarks.harness.corpus import Batch, Corpus
from benchmarks.program.compiled import HLOError, Program, read_program
from benchmarks.program.deadlock import require_no_deadlock
from benchmarks.record import Record
from benchmarks.timing.equality import BATCHES, CHECKED_STEPS, Trajectory
from benchmarks.timing.measure import Training, bytes_accessed, compile_step
from strategies import Step
from strategies.model.gpt import flops_per_token

SEED = 0
READ_ONLY = {"cpu": {"xla_backend_optimization_level": 0}, "gpu": {"xla_gpu_autotune_level": 0}}
"""Options of the compilers of programs that are read, and not run: machine code need not be good, which changes nothing
before it, neither the HLO nor what memory is planned for; and kernels cannot be tried out where there is no GPU."""


@dataclass
class Entry:
    """A case on its way to a row."""

    case: Case
    record: Record
    step: Step | None = None
    program: Any = None
    error: Exception | None = None


class Preparation:
    """Compiles steps, starts them on the text, and holds them against one device, which is prepared once a workload."""

    def __init__(self, corpus_N: Corpus, clock: Clock) -> None:
        self.corpus_N, self.clock = corpus_N, clock
        self._inits: dict[Any, Callable[..., Any]] = {}
        self._references: dict[Case, Entry | str] = {}
        self._trajectories: dict[Case, Trajectory] = {}

    def stages(self, entry: Entry, *, compile_only: bool) -> Generator[dict[str, Any]]:
        """What is learnt about a case, stage by stage."""
        step = entry.step = entry.case.build()
        yield {"model_flops_per_step": flops_per_token(step.config) * step.tokens_per_step}
        topology = entry.case.topology
        read_only = READ_ONLY.get(entry.case.devices[0].platform, {}) if compile_only else {}
        try:
            with self.clock.phase("compile"):
                compilation = compile_step(step, read_only | dict(entry.case.compiler_options))
        except CompileError as error:
            if topology and (told := refused(error)):
                yield {"estimate": told}
                raise DoesNotFit(f"{told}: {error}") from error
            raise
        entry.program = compilation.program
        memory = planned_memory(step, entry.program)
        options = tuple(option for option in compilation.options.items() if option not in read_only.items())
        yield {"compile_seconds": compilation.seconds, "memory": memory, "compiler_options": options}
        program = self._read(entry)
        yield {
            "compiled": {
                "compiled.compilations": compilation.programs,
                "compiled.bytes_accessed": bytes_accessed(entry.program),
                **(self._facts(entry.case, step, program) if program else {}),
            }
        }
        if program:
            require_no_deadlock(step.mesh, program.concurrent)
        if topology and topology.chip and program:
            told = estimate(topology.chip, step, program, memory)
            yield {"estimate": told}
            if not told.fits:
                raise DoesNotFit(str(told))
        if not compile_only:
            training = self.start(entry)
            yield {}  # each has room for its state: in the steps one that fails would leave the others in a collective
            with self.clock.phase("checked"):
                trajectory = training.trajectory(CHECKED_STEPS)
            del training  # its memory is needed
            yield {"loss_first": trajectory.losses[0], "loss_last": trajectory.losses[-1]}
            trajectory.require_finite("in the first steps")
            yield from self._check(entry, trajectory)

    def _read(self, entry: Entry) -> Program | None:
        """What the compiled program does; None where it is written in a way that cannot be read."""
        assert entry.step
        try:
            return read_program(entry.program.as_text() or "", entry.step.mesh.shape)
        except HLOError as error:
            warnings.warn(f"{entry.case}: its compiled program cannot be read: {error}", stacklevel=2)
            return None

    def _facts(self, case: Case, step: Step, program: Program) -> dict[str, Any]:
        return {
            **program.as_row(),
            **program.as_row_between(crossing(step.mesh)),
            **explained(case, step.mesh, program),
        }

    def start(self, entry: Entry) -> Training:
        """A training run on the text, from its beginning."""
        assert entry.step
        spread = entry.case.strategy, entry.case.mesh, entry.case.options
        if spread not in self._inits:  # the same for every batch size
            with self.clock.phase("compile"):
                self._inits[spread] = entry.step.init.lower(jax.random.key(SEED)).compile()
        return begin_training(entry.step, entry.program, self._inits[spread], self.corpus_N)

    def _check(self, entry: Entry, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
        """Whether the first steps are those of one device: not until it is shown."""
        case = entry.case
        if entry.step and entry.step.inexact:
            yield {"reason": f"not exact by design: {entry.step.inexact}"}
            return
        if case == case.single:
            self._references[case], self._trajectories[case] = entry, trajectory
        reference = self.reference(case.single)
        if isinstance(reference, str):
            yield {"reason": reference}
        else:
            yield {"matches_single": False}
            self.require_equal(trajectory, case)
            yield {"matches_single": True}

    def require_equal(self, trajectory: Trajectory, case: Case) -> None:
        """Refuse first steps that are not those of its reference.

        Raises:
            Mismatch: names the first step that departs.
        """
        trajectory.require_equal(self._trajectories[case.single], case)

    def give_up(self, single: Case, why: str) -> str:
        """Do without a reference."""
        self._references[single] = reason = f"not checked, for single was given up: {why}"
        return reason

    def reference(self, single: Case) -> Entry | str:
        """One device on the same work, or why there is none: a model may be too large for one device."""
        if single not in self._references:
            entry = Entry(single, Record.begin(single))
            try:
                self._trajectories[single] = processes.together(partial(self._first_steps, entry))
                self._references[single] = entry
            except Exception as error:
                traceback.clear_frames(error.__traceback__)
                self._references[single] = f"not checked, for single ended in {status_of(error)}: {reason_of(error)}"
        return self._references[single]

    def _first_steps(self, entry: Entry) -> Trajectory:
        """Of the reference. Nobody else is needed for them: each process has its own."""
        entry.step = entry.case.build()
        with self.clock.phase("compile"):
            entry.program = compile_step(entry.step, dict(entry.case.compiler_options)).program
        return first_steps(self.start(entry))


def begin_training(step: Step, program: Callable[..., Any], init: Callable[..., Any], corpus_N: Corpus) -> Training:
    """A training run of a compiled step on the text, from its beginning: the same for every strategy."""
    sizes = step.train.batch_size, step.config.sequence
    batches = [step.place(Batch(corpus_N, index, *sizes)) for index in range(BATCHES)]
    return Training(program, init(jax.random.key(SEED)), batches, alone=step.mesh.size == 1)


def first_steps(training: Training) -> Trajectory:
    """Train for the steps that are checked.

    Raises:
        NonFinite: one of them left the numbers.
    """
    trajectory = training.trajectory(CHECKED_STEPS)
    trajectory.require_finite("in the first steps")
    return trajectory
