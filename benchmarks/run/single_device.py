"""A process with a single virtual device, in which `single` is timed as on a machine of its own.

The virtual devices of a process share one thread pool, and XLA partitions the work of each device for all of its
threads. Beside eight virtual devices, `single` takes a fifth longer than where it is the only device. So it is timed,
traced and attributed in another process with one device, interleaved with the steps of this process.

This process compiles `single` as well, like every other case, for the facts of its program and to train the reference
for losses and gradients. The other one compiles at the same time.
"""

import atexit
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

from benchmarks.cases import case as cases
from benchmarks.cases.case import Case
from benchmarks.cases.failures import ProcessDied, Status, reason_of, status_of
from benchmarks.cluster import processes
from benchmarks.cluster.processes import FailedElsewhere
from benchmarks.commandline.parent import binding
from benchmarks.run.attribution import Attribution, attribute
from benchmarks.run.clock import Clock
from benchmarks.run.corpus import Corpus, corpus_source, map_file
from benchmarks.run.equality import Trajectory
from benchmarks.run.initial_states import InitialStates
from benchmarks.run.machine import matmul_flops_per_second
from benchmarks.run.measure import Training, compile_step, no_compilation, trace
from benchmarks.run.pool import ignoring_signals
from benchmarks.run.prepare import begin_training, first_steps
from benchmarks.run.supervise import cause_of_death
from strategies import Step
from strategies.backends.backend import are_virtual
from strategies.single import SINGLE


class SingleDeviceProcess:
    """Client of a process with one device, which executes one request at a time."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._connection, server_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(server_end,), daemon=True)
        self._asked = 0
        with binding(), ignoring_signals(signal.SIGINT, signal.SIGTERM):  # it is ended by this process
            self._process.start()
        atexit.register(self.end)  # it ignores the SIGTERM that Python sends to daemon processes at exit
        server_end.close()

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.is_alive()

    def ask(self, request: Callable[..., Any], *arguments: Any, begin: Callable[[], None] = lambda: None) -> Any:
        """Call a method of `_DeviceServer` in the process and return its result.

        Args:
            request: the method.
            arguments: its arguments, which are pickled.
            begin: called each time the server begins another part of a long request.

        Raises:
            FailedElsewhere: the method failed; has its status and reason.
            ProcessDied: the process has died.
        """
        try:
            answer, failure = self._answer(self._send(request, *arguments), begin)
        except (EOFError, OSError) as error:
            self._process.join()
            death = cause_of_death(self._process.exitcode or 0)
            # Drop the traceback: a frame in it holds a view of the BytesIO being sent. In a reference cycle, such as
            # pytest.raises makes, the collector closes the BytesIO before the view, and Python 3.13 then reports
            # "BufferError ... re-sized".
            raise ProcessDied(f"the single-device process was ended by {death}") from error.with_traceback(None)
        if failure:
            raise FailedElsewhere(*failure)
        return answer

    def _send(self, request: Callable[..., Any], *arguments: Any) -> int:
        """Send a request, and return its id."""
        self._asked += 1
        self._connection.send((self._asked, request.__name__, arguments))
        return self._asked

    def _answer(self, request_id: int, begin: Callable[[], None]) -> tuple[Any, tuple[Status, str] | None]:
        """Wait for the answer to a request. Answers that nobody waits for, as after Ctrl-C, may come before it."""
        while True:
            answered_id, answer, failure = self._connection.recv()
            if answered_id == request_id:
                return answer, failure
            begin()

    def compile_ahead(self, case: Case) -> None:
        """Have the process compile a case while this one goes on. If that fails, `train` fails in the same way."""
        with suppress(OSError):  # it has died, which the next request finds out
            self._send(_DeviceServer.compile_ahead, case)

    def train(self, case: Case, corpus_N: Corpus) -> "RemoteTraining":
        """Compile a case there, train its first steps on the corpus, and return the training run."""
        return RemoteTraining(self, *self.ask(_DeviceServer.train, case, corpus_source(corpus_N)))

    def matmul_flops_per_second(self, dtype: str) -> float:
        """Run `machine.matmul_flops_per_second` on the single device."""
        return self.ask(_DeviceServer.matmul_flops_per_second, dtype)

    def end(self) -> None:
        """Kill the process."""
        atexit.unregister(self.end)
        self._process.kill()
        self._process.join()
        self._connection.close()


_process_of_one_device: SingleDeviceProcess | None = None


def single_device_process() -> SingleDeviceProcess:
    """The single-device process of this process. It is started on first use, and again if it has died."""
    global _process_of_one_device
    if _process_of_one_device is None or not _process_of_one_device.alive:
        _process_of_one_device = SingleDeviceProcess()
    return _process_of_one_device


def has_single_device_process() -> bool:
    """Whether this process times `single` in a single-device process: it has several virtual devices and is the first
    process.

    The other process knows only registered strategies, so a `single` that was replaced is timed here.
    """
    return are_virtual(jax.local_devices()) and processes.is_first() and cases.STRATEGIES["single"] is SINGLE


@dataclass
class RemoteTraining:
    """A training run in the single-device process. It can be timed interleaved with local ones.

    Attributes:
        process: where it runs.
        training_id: its id there.
        first_steps: metrics of its first steps.
        dispatch_seconds: as in `Training`.
    """

    process: SingleDeviceProcess
    training_id: int
    first_steps: Trajectory
    dispatch_seconds: float = 0.0

    def block(self, steps: int) -> float:
        """Run some consecutive steps and return their seconds."""
        seconds, self.dispatch_seconds = self.process.ask(_DeviceServer.block, self.training_id, steps)
        return seconds

    def require_finite(self, when: str) -> None:
        """As `Training.require_finite`."""
        self.process.ask(_DeviceServer.require_finite, self.training_id, when)

    def trace(self, folder: Path, steps: int) -> None:
        """Record a profiler trace of a block of this many steps, as `measure.trace`."""
        self.process.ask(_DeviceServer.trace, self.training_id, folder, steps)

    def attribute(self, case: Case, seconds: float, rounds: int, begin: Callable[[], None]) -> Attribution:
        """Attribute the time of a step, as `attribution.attribute`."""
        return self.process.ask(_DeviceServer.attribute, self.training_id, case, seconds, rounds, begin=begin)

    def drop(self) -> None:
        """Free its memory."""
        self.process.ask(_DeviceServer.drop, self.training_id)


class _DeviceServer:
    """Methods that are executed in the single-device process.

    Attributes:
        begin: tells the client that another part of a long request begins.
        trainings: training runs by id.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin, self.trainings = begin, dict[int, Training]()
        self.initial_states = InitialStates(Clock())

    @lru_cache(maxsize=2)  # noqa: B019 (there is one server per process; the next program is compiled ahead)
    def compiled(self, case: Case) -> tuple[Step, Any]:
        step = case.build()
        return step, compile_step(step, case.compiler_options).program

    def compile_ahead(self, case: Case) -> None:
        self.compiled(case)

    def train(self, case: Case, source: Path | Corpus) -> tuple[int, Trajectory]:
        step, program = self.compiled(case)
        corpus_N = map_file(source) if isinstance(source, Path) else source
        training = begin_training(step, program, partial(self.initial_states.begin, case, step), corpus_N)
        begun = first_steps(training)
        training_id = max(self.trainings, default=0) + 1
        self.trainings[training_id] = training
        return training_id, begun

    def block(self, training_id: int, steps: int) -> tuple[float, float]:
        training = self.trainings[training_id]
        with no_compilation():  # the client cannot see what is compiled here
            return training.block(steps), training.dispatch_seconds

    def require_finite(self, training_id: int, when: str) -> None:
        self.trainings[training_id].require_finite(when)

    def trace(self, training_id: int, folder: Path, steps: int) -> None:
        trace(folder, partial(self.trainings[training_id].block, steps))

    def attribute(self, training_id: int, case: Case, seconds: float, rounds: int) -> Attribution:
        step, _ = self.compiled(case)
        return attribute(case, step, self.trainings[training_id], seconds, rounds, self.begin)

    def drop(self, training_id: int) -> None:
        del self.trainings[training_id]

    def matmul_flops_per_second(self, dtype: str) -> float:
        return matmul_flops_per_second(dtype)


def _serve(connection: Connection) -> None:
    """Answer requests until the client disconnects.

    An answer is (id, result, None), or (id, None, (status, reason)) for a failure. (0, None, None) before it says that
    another part of the request begins.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    device = _DeviceServer(lambda: connection.send((0, None, None)))
    with suppress(EOFError, OSError):  # the client has exited
        while True:
            request_id, request, arguments = connection.recv()
            try:
                answer, failure = getattr(device, request)(*arguments), None
            except Exception as error:
                answer, failure = None, (status_of(error), reason_of(error))
            connection.send((request_id, answer, failure))
