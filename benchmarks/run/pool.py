"""Runs tasks in other processes: long ones in one process each, within a time budget, and thousands of short ones.

`python -m benchmarks.run.pool` is a process of a long task. When it ends, the memory that a compiler took is returned.
If it dies, only its own task is lost.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from benchmarks.cases.failures import reason_of
from benchmarks.cli.child import Child, parent_connection, same_code
from benchmarks.cli.outputs import log
from benchmarks.cli.starting import resume_collection, start_forked
from benchmarks.cli.statuses import cause_of_death

Task = TypeVar("Task")
Answer = TypeVar("Answer")
CHUNK_TASKS = 64
"""Short tasks that a process takes at a time."""
MANY_TASKS = 2000
"""Fewest short tasks for which processes are started."""
LOG_SECONDS = 5
PROGRAM = "benchmarks.run.pool"


@dataclass(frozen=True)
class Outcome(Generic[Task]):
    """How a task ended."""

    task: Task
    result: Any
    reason: str  # why there is no result; "" if there is one
    seconds: float


def run_in_processes(
    tasks: Sequence[Task], work: Callable[[Task], Any], at_once: int, budget_seconds: float
) -> Iterator[Outcome[Task]]:
    """Yield the outcome of each task as soon as it ends, and when time is up, of those that have not.

    Each process imports `work`, a module-level function. The budget is the time for all tasks together.
    """
    begin = time.monotonic()
    waiting, running = list(tasks), {}
    try:
        while waiting or running:
            left = begin + budget_seconds - time.monotonic()
            if left <= 0:
                break
            while waiting and len(running) < at_once:
                job = Job(work, waiting.pop(0))
                running[job.answers] = job
            for answers in wait(list(running), timeout=left):
                yield running.pop(answers).end()
        for task in [*(job.task for job in running.values()), *waiting]:
            yield Outcome(task, None, f"not compiled within {budget_seconds:g} s", 0.0)
    finally:
        for job in running.values():
            job.child.end()


def mapped(work: Callable[[Task], Answer], tasks: Sequence[Task], at_once: int) -> Iterator[Answer]:
    """Yield the results of short tasks in order. On Linux `at_once` processes share them if they are many.

    The processes are forks of this one, because importing JAX takes seconds. So JAX must not have any threads yet,
    which it starts with its first device: a fork has their locks, but not the threads.
    """
    count, last_log = 0, time.monotonic()
    with ExitStack() as stack:
        if at_once == 1 or len(tasks) < MANY_TASKS or sys.platform != "linux":
            answers = map(work, tasks)
        else:
            processes = min(at_once, math.ceil(len(tasks) / CHUNK_TASKS))
            forks = ProcessPoolExecutor(processes, get_context("fork"), start_forked, (os.getpid(),))
            pool = stack.enter_context(forks)
            stack.callback(pool.shutdown, cancel_futures=True)
            answers = pool.map(work, tasks, chunksize=CHUNK_TASKS)
        try:
            for count, answer in enumerate(answers, start=1):
                yield answer
                if time.monotonic() > last_log + LOG_SECONDS:
                    last_log = time.monotonic()
                    log(f"{count:,} of {len(tasks):,} so far")
        except BrokenProcessPool:  # one was killed, as for memory; this process does what is left
            yield from map(work, tasks[count:])


class Job(Generic[Task]):
    """A task and the process that runs it, which inherits nothing and so sets up JAX for itself."""

    def __init__(self, work: Callable[[Task], Any], task: Task) -> None:
        self.task, self.begin = task, time.monotonic()
        self.child = Child([sys.executable, "-P", "-m", PROGRAM], same_code(), own_group=False)
        self.answers = self.child.connection
        self.child.send((work, task))

    def end(self) -> Outcome[Task]:
        """The outcome: the result, or the cause of the process's death."""
        try:
            result, reason = self.answers.recv()
        except (EOFError, OSError):
            result, reason = None, f"its process ended by {cause_of_death(self.child.process.wait())}"
        self.child.end()
        return Outcome(self.task, result, reason, time.monotonic() - self.begin)


def main() -> None:
    """Run a task, and send its result, or why it failed."""
    if not (connection := parent_connection()):
        sys.exit(f"python -m {PROGRAM} runs a task of the process that starts it; use `meshmark search --compile`")
    work, task = connection.recv()
    resume_collection()
    try:
        answer = work(task), ""
    except Exception as error:
        answer = None, reason_of(error)
    connection.send(answer)


if __name__ == "__main__":
    main()
