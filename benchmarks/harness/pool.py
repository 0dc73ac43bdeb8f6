"""Work in processes, one for each piece of it, until time is up.

What a compiler takes it gives back when its process ends; and if that dies, its piece alone is lost.
"""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from benchmarks.failures import reason_of
from benchmarks.harness.supervise import death_of

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Outcome(Generic[Piece]):
    """How a piece of work ended: what it gave, or why it gave nothing, and the seconds that it took."""

    piece: Piece
    result: Any
    reason: str
    seconds: float


def work_off(
    pieces: Sequence[Piece], work: Callable[[Piece], Any], at_once: int, budget_seconds: float
) -> Iterator[Outcome[Piece]]:
    """Yield how each piece ended, as soon as it has; when time is up, those that have not.

    `work` is a function of a module: a process of its own imports it.
    """
    begin = time.monotonic()
    waiting, running = list(pieces), {}
    try:
        while waiting or running:
            left = begin + budget_seconds - time.monotonic()
            if left <= 0:
                break
            while waiting and len(running) < at_once:
                job = Job.start(work, waiting.pop(0))
                running[job.answers] = job
            for answers in wait(list(running), timeout=left):
                yield running.pop(answers).end()
        for piece in [*(job.piece for job in running.values()), *waiting]:
            yield Outcome(piece, None, f"not compiled within {budget_seconds:g} s", 0.0)
    finally:
        for job in running.values():
            job.kill()


@dataclass(frozen=True)
class Job(Generic[Piece]):
    """A piece of work, and the process that is at it."""

    piece: Piece
    process: BaseProcess
    answers: Connection
    begin: float

    @classmethod
    def start(cls, work: Callable[[Piece], Any], piece: Piece) -> "Job[Piece]":
        """Start a process with nothing of this one but what it imports: JAX is set up there anew."""
        context = multiprocessing.get_context("spawn")
        answers, giving = context.Pipe(duplex=False)
        process = context.Process(target=_do, args=(work, piece, giving), daemon=True)
        with deaf(signal.SIGINT):  # Ctrl-C is for who ends the processes
            process.start()
        giving.close()  # the process has it: when that ends, `answers` does
        return cls(piece, process, answers, time.monotonic())

    def end(self) -> Outcome[Piece]:
        """What it gave, or what it died of."""
        try:
            result, reason = self.answers.recv()
        except EOFError:
            self.process.join()
            result, reason = None, f"its process ended by {death_of(self.process.exitcode or 0)}"
        self.kill()
        return Outcome(self.piece, result, reason, time.monotonic() - self.begin)

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.join()
        self.answers.close()


def _do(work: Callable[[Any], Any], piece: Any, giving: Connection) -> None:
    try:
        answer = work(piece), ""
    except Exception as error:
        answer = None, reason_of(error)
    giving.send(answer)


@contextmanager
def deaf(*numbers: signal.Signals) -> Iterator[None]:
    """A process started inside ignores these signals, which a terminal or a job sends to all.

    They are not blocked instead: multiprocessing unblocks them before it starts the first process (resource_tracker of
    Python 3.11). Nothing is changed off the main thread, where it cannot be.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
