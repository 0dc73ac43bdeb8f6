"""Runs tasks in one process each, within a time budget.

When the process ends, the memory that a compiler took is returned. If it dies, only its own task is lost.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from benchmarks.cases.failures import reason_of
from benchmarks.cli.parent import binding, ignoring_signals
from benchmarks.cli.statuses import cause_of_death

Task = TypeVar("Task")


@dataclass(frozen=True)
class Outcome(Generic[Task]):
    """How a task ended.

    Attributes:
        task: the task.
        result: its result, or None.
        reason: why there is no result; "" if there is one.
        seconds: time that it took.
    """

    task: Task
    result: Any
    reason: str
    seconds: float


def run_in_processes(
    tasks: Sequence[Task], work: Callable[[Task], Any], at_once: int, budget_seconds: float
) -> Iterator[Outcome[Task]]:
    """Yield the outcome of each task as soon as it ends, and when time is up, of those that have not.

    Args:
        tasks: arguments of `work`, one per task.
        work: a module-level function, because each process imports it.
        at_once: number of processes at a time.
        budget_seconds: time for all tasks together.
    """
    begin = time.monotonic()
    waiting, running = list(tasks), {}
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
        for task in [*(job.task for job in running.values()), *waiting]:
            yield Outcome(task, None, f"not compiled within {budget_seconds:g} s", 0.0)
    finally:
        for job in running.values():
            job.kill()


@dataclass(frozen=True)
class Job(Generic[Task]):
    """A task and the process that runs it."""

    task: Task
    process: BaseProcess
    answers: Connection
    begin: float

    @classmethod
    def start(cls, work: Callable[[Task], Any], task: Task) -> "Job[Task]":
        """Start a fresh process, which inherits nothing and so sets up JAX for itself."""
        context = multiprocessing.get_context("spawn")
        answers, sender = context.Pipe(duplex=False)
        process = context.Process(target=_do, args=(work, task, sender), daemon=True)
        with binding(), ignoring_signals(signal.SIGINT):  # this process handles Ctrl-C and ends the others
            process.start()
        sender.close()  # only the child holds it now, so `answers` ends with the child
        return cls(task, process, answers, time.monotonic())

    def end(self) -> Outcome[Task]:
        """The outcome: the result, or the cause of the process's death."""
        try:
            result, reason = self.answers.recv()
        except EOFError:
            self.process.join()
            result, reason = None, f"its process ended by {cause_of_death(self.process.exitcode or 0)}"
        self.kill()
        return Outcome(self.task, result, reason, time.monotonic() - self.begin)

    def kill(self) -> None:
        """Kill the process, if it is still running."""
        self.process.kill()
        self.process.join()
        self.answers.close()


def _do(work: Callable[[Any], Any], task: Any, sender: Connection) -> None:
    try:
        answer = work(task), ""
    except Exception as error:
        answer = None, reason_of(error)
    sender.send(answer)
