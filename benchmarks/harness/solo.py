"""One device in a process of its own: `single` as a user of one device would run it.

The virtual devices of a process share one pool of threads, and XLA cuts the work of each device for all of them: beside
eight virtual devices `single` takes a fifth longer than where there is one device. So it is timed in another process,
which has one, and takes turns with the steps of this one, block by block. There it is traced and attributed, too.

This process compiles it as well, as it compiles every case: for the facts of its compiled program, and to train the
reference that losses and gradients are held against.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import jax

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.cluster import processes
from benchmarks.cluster.processes import Elsewhere
from benchmarks.failures import Died, Status, reason_of, status_of
from benchmarks.harness.corpus import Corpus, bytes_of_file, source_of
from benchmarks.harness.pool import deaf
from benchmarks.harness.prepare import begin_training, first_steps
from benchmarks.harness.supervise import death_of
from benchmarks.timing.attribution import Attribution, attribute
from benchmarks.timing.equality import Trajectory
from benchmarks.timing.machine import matmul_flops_per_second
from benchmarks.timing.measure import Training, compile_step, no_compilation, trace
from strategies import Step
from strategies.mesh import are_virtual
from strategies.single import SINGLE


class Solo:
    """A process with one device, which does one thing at a time, when it is asked to."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._questions, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._asked = 0
        with deaf(signal.SIGINT, signal.SIGTERM):  # it ends with this process
            self._process.start()
        atexit.register(self.end)  # it does not hear the SIGTERM that Python sends it then
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.is_alive()

    def ask(self, question: Callable[..., Any], *arguments: Any, begin: Callable[[], None] = lambda: None) -> Any:
        """Have a function of `_Device` answer; `begin` is called whenever it begins with a part of a long answer.

        Raises:
            Elsewhere: it failed there; as what, and why.
            Died: the process has ended.
        """
        self._asked += 1
        try:
            self._questions.send((self._asked, question.__name__, arguments))
            answer, failure = self._answer(self._asked, begin)
        except (EOFError, OSError) as error:
            self._process.join()
            death = death_of(self._process.exitcode or 0)
            # Without its frames: one has a view of the BytesIO being sent. In a reference cycle, such as pytest.raises
            # makes, the collector closes that before the view, and Python 3.13 says "BufferError ... re-sized".
            raise Died(f"the process of one device ended by {death}") from error.with_traceback(None)
        if failure:
            raise Elsewhere(*failure)
        return answer

    def _answer(self, number: int, begin: Callable[[], None]) -> tuple[Any, tuple[Status, str] | None]:
        """To the question of that number: the answer to one that Ctrl-C interrupted may come before."""
        while True:
            answered, answer, failure = self._questions.recv()
            if answered == number:
                return answer, failure
            begin()

    def train(self, case: Case, corpus_N: Corpus) -> "SoloTraining":
        """Compile the step of a case, and train it on the text for its first steps."""
        return SoloTraining(self, *self.ask(_Device.train, case, source_of(corpus_N)))

    def matmul_flops_per_second(self, dtype: str) -> float:
        """As `machine.matmul_flops_per_second`, of one device alone."""
        return self.ask(_Device.matmul_flops_per_second, dtype)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        atexit.unregister(self.end)
        self._process.kill()
        self._process.join()
        self._questions.close()


_solo: Solo | None = None


def solo() -> Solo:
    """The one that this process asks; another is started where there is none, or it has died. It ends with this one."""
    global _solo
    if _solo is None or not _solo.alive:
        _solo = Solo()
    return _solo


def has_solo() -> bool:
    """Whether one device is timed there: where this process has several virtual ones, and is the one that times it.

    Another process knows the strategies of the registry alone, and no `single` that took the place of ours.
    """
    return are_virtual(jax.local_devices()) and processes.is_first() and cases.STRATEGIES["single"] is SINGLE


@dataclass
class SoloTraining:
    """A training run in the process of one device; it can take turns with others.

    Attributes:
        number: by which it is known there.
        first_steps: what its first steps showed.
        dispatch_seconds: as of `Training`.
    """

    solo: Solo
    number: int
    first_steps: Trajectory
    dispatch_seconds: float = 0.0

    def block(self, steps: int) -> float:
        """Seconds that some chained steps take there."""
        seconds, self.dispatch_seconds = self.solo.ask(_Device.block, self.number, steps)
        return seconds

    def require_finite(self, when: str) -> None:
        """As `Training.require_finite`."""
        self.solo.ask(_Device.require_finite, self.number, when)

    def trace(self, folder: Path, steps: int) -> None:
        """As `measure.trace`, of a block of so many steps."""
        self.solo.ask(_Device.trace, self.number, folder, steps)

    def attribute(self, case: Case, seconds: float, rounds: int, begin: Callable[[], None]) -> Attribution:
        """As `attribution.attribute`."""
        return self.solo.ask(_Device.attribute, self.number, case, seconds, rounds, begin=begin)

    def drop(self) -> None:
        """Give back its memory."""
        self.solo.ask(_Device.drop, self.number)


class _Device:
    """What is done in the process of one device.

    Attributes:
        begin: tell the process that asks that a part of a long answer begins.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin, self.trainings = begin, dict[int, Training]()

    @lru_cache(maxsize=1)  # noqa: B019 (there is one device, as long as its process)
    def compiled(self, case: Case) -> tuple[Step, Any]:
        step = case.build()
        return step, compile_step(step, dict(case.compiler_options)).program

    def train(self, case: Case, source: Path | Corpus) -> tuple[int, Trajectory]:
        step, program = self.compiled(case)
        corpus_N = bytes_of_file(source) if isinstance(source, Path) else source
        training = begin_training(step, program, step.init, corpus_N)
        begun = first_steps(training)
        number = max(self.trainings, default=0) + 1
        self.trainings[number] = training
        return number, begun

    def block(self, number: int, steps: int) -> tuple[float, float]:
        training = self.trainings[number]
        with no_compilation():  # who asks cannot see what is compiled here
            return training.block(steps), training.dispatch_seconds

    def require_finite(self, number: int, when: str) -> None:
        self.trainings[number].require_finite(when)

    def trace(self, number: int, folder: Path, steps: int) -> None:
        trace(folder, partial(self.trainings[number].block, steps))

    def attribute(self, number: int, case: Case, seconds: float, rounds: int) -> Attribution:
        step, _ = self.compiled(case)
        return attribute(case, step, self.trainings[number], seconds, rounds, self.begin)

    def drop(self, number: int) -> None:
        del self.trainings[number]

    def matmul_flops_per_second(self, dtype: str) -> float:
        return matmul_flops_per_second(dtype)


def _serve(questions: Connection) -> None:
    """Answer until nobody asks any more.

    An answer is (number, answer, None), or (number, None, (status, reason)) of a failure. Before it, (0, None, None)
    says that a part of it begins.
    """
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    device = _Device(lambda: questions.send((0, None, None)))
    with suppress(EOFError, OSError):  # whoever asks has ended
        while True:
            number, question, arguments = questions.recv()
            try:
                answer, failure = getattr(device, question)(*arguments), None
            except Exception as error:
                answer, failure = None, (status_of(error), reason_of(error))
            questions.send((number, answer, failure))


def _end_with(parent: Any) -> None:
    """End this process when the one that asks has ended, whatever it is doing: it would slow down what runs next."""
    wait([parent.sentinel])
    os._exit(0)
