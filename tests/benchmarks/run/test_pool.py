"""The process pool: every piece of work ends in an outcome, within the time limit."""

import subprocess
import sys
import time

import pytest

from benchmarks.run import pool
from benchmarks.run.pool import Outcome, run_in_processes
from tests.benchmarks.piecework import double, go
from tests.processes import ROOT, environment


def test_a_process_that_dies_is_an_outcome() -> None:
    """A piece that is killed, exits or raises has an outcome with the reason, and the other pieces go on."""
    outcomes = {each.task: each for each in run_in_processes(["killed", "quits", "fails", "well"], go, 2, 600)}
    assert [outcomes[way].result for way in ("killed", "quits", "fails", "well")] == [None, None, None, "well"]
    assert "SIGKILL" in outcomes["killed"].reason
    assert "exit status 3" in outcomes["quits"].reason
    assert outcomes["fails"].reason == "ValueError: no such way"
    assert outcomes["well"].reason == ""


def test_the_time_limit_ends_all_pieces() -> None:
    """At the time limit running pieces are ended; these, and those that never began, have an outcome that says so."""
    begin = time.monotonic()
    outcomes = list(run_in_processes(["sleeps", "never begun"], go, 1, 1.0))
    assert time.monotonic() - begin < 60
    assert [(each.task, each.result) for each in outcomes] == [("sleeps", None), ("never begun", None)]
    assert {each.reason for each in outcomes} == {"not compiled within 1 s"}


def test_closing_the_iterator_ends_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the iterator of outcomes ends the processes that are still at work."""
    started, job = [], pool.Job
    monkeypatch.setattr(pool, "Job", lambda *given: started.append(job(*given)) or started[-1])
    work = run_in_processes(["well", "sleeps"], go, 2, 600)
    assert next(work).result == "well"
    work.close()  # type: ignore[attr-defined]
    assert [job.child.runs for job in started] == [False, False]


def test_a_worker_that_nobody_started_says_so() -> None:
    """Started by hand, it ends with one line that names the command."""
    command = [sys.executable, "-m", pool.PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "use `meshmark search --compile`" in done.stderr


def test_no_more_at_a_time_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece begins only when fewer pieces run than allowed."""
    running, most = set(), []

    class Job:
        """A piece of work that is done at once."""

        def __init__(self, work: object, task: int) -> None:
            self.task, self.answers = task, task
            running.add(task)
            most.append(len(running))

        def end(self) -> Outcome[int]:
            """The outcome."""
            running.remove(self.task)
            return Outcome(self.task, double(self.task), "", 0.0)

    monkeypatch.setattr(pool, "Job", Job)
    monkeypatch.setattr(pool, "wait", lambda answers, timeout: answers[:1])
    assert [each.result for each in run_in_processes(range(5), double, 2, 600)] == [0, 2, 4, 6, 8]
    assert max(most) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_short_tasks_are_shared_by_other_processes() -> None:
    """Their results are in order, and none is from this process if they are many. An error is raised here, and what a
    process that was killed did not do is done here.
    """
    names = "import os; from benchmarks.run import pool; from tests.benchmarks.piecework import *"
    answers = "[*pool.mapped(double, range(300), 2)] == [*range(0, 600, 2)]"
    elsewhere = "os.getpid() in {*pool.mapped(process_of, range(300), 2)}"
    killed = "{*pool.mapped(die_elsewhere, [os.getpid()] * 300, 2)}"
    code = (
        f"{names}; few = {elsewhere}; pool.MANY_TASKS = 300; print({answers}, few, {elsewhere}, {killed}, flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; [*pool.mapped(go, ['well', 'fails', *['well'] * 300], 2)]"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (1, "True True False {'done'}\n"), done.stderr
    assert "ValueError: no such way" in done.stderr
