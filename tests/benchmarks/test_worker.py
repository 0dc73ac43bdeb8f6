"""The worker of the paired gate answers each line with one line of JSON, whatever happens."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.run.measure import Training
from benchmarks.worker import PROTOCOL, TimingServer, main, serve
from results.gates.paired.workers import PROTOCOL as SPOKEN
from results.records.reading import Case
from tests.processes import ROOT, environment

TINY = ("--layers=1", "--embed=16", "--heads=2", "--sequence=16", "--batch-size=4", "--mesh=data=1")
SINGLE = "single-data=1-b4"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Ask a worker that has one feasible and one infeasible case."""
    command = [sys.executable, "-m", "benchmarks.worker", *TINY, "--strategy=single,tensor"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=-1, stdout=-1, text=True) as worker:
        assert worker.stdin
        assert worker.stdout
        questions, answers = worker.stdin, worker.stdout

        def ask(do: str, **arguments: Any) -> dict[str, Any]:
            print(json.dumps({"do": do, **arguments}), file=questions, flush=True)
            return json.loads(answers.readline())

        yield ask
    assert worker.returncode == 0  # it ends where the questions do


def test_hello_says_what_would_run(ask: Ask) -> None:
    """The worker names its protocol, code, versions, devices, and cases with the exact gate's names."""
    answer = ask("hello")
    assert answer["protocol"] == PROTOCOL == SPOKEN
    assert answer["root"] == str(ROOT)
    assert answer["environment"]["jax"] == jax.__version__
    assert answer["devices"] == "8 cpu"
    assert [facts["id"] for facts in answer["cases"]] == [SINGLE, "tensor-data=1-b4"]
    assert str(Case.of(answer["cases"][0], "the worker")).startswith(f"test_step[{SINGLE}] nano,layers=1,embed=16")


def test_a_case_is_prepared_and_timed(ask: Ask) -> None:
    """A prepared case is timed in a block of as many steps as asked for; the worker says how many fill a block."""
    assert ask("prepare", case=SINGLE)["loss"] == pytest.approx(np.log(256), abs=0.1)
    steps = ask("size")["steps"]
    assert ask("block", steps=10 * steps)["seconds"] > 0.05


def test_a_failure_is_an_answer(ask: Ask) -> None:
    """An error is answered with its status and a reason of one line, and the worker goes on."""
    infeasible = {"error": "infeasible", "reason": "mesh data=1 has the axis data; it can be tensor"}
    assert ask("prepare", case="tensor-data=1-b4") == infeasible
    assert ask("size")["reason"] == "RuntimeError: no case is prepared"
    assert ask("dance")["reason"] == "KeyError: 'dance'"
    assert ask("prepare", case=SINGLE).keys() == {"loss"}


def compiling(state: int, batch: Any) -> tuple[int, dict[str, Any]]:
    """A step that compiles a new function at each call."""
    return state, {"loss": jax.jit(lambda x: x + 1)(1.0), "grad_norm": np.float32(0)}


def diverged(state: int, batch: Any) -> tuple[int, dict[str, Any]]:
    """A step whose loss is NaN."""
    return state, {"loss": np.float32(np.nan), "grad_norm": np.float32(0)}


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        (compiling, "error", "compiled while it was timed: .*; a step must be compiled once"),
        (diverged, "nan_loss", "loss nan and gradient norm 0.0 after a timed block"),
    ],
)
def test_a_block_that_does_not_count_is_a_failure(program: Callable[..., Any], status: str, reason: str) -> None:
    """A block in which something was compiled, or whose loss is not finite, is answered with an error, not a time."""
    worker = TimingServer([], np.zeros(0, np.uint8))
    worker.training = Training(program, 0, [None])
    answers = io.StringIO()
    serve(worker, [json.dumps({"do": "block", "steps": 2})], answers)
    answer = json.loads(answers.getvalue())
    assert answer["error"] == status
    assert re.fullmatch(reason, answer["reason"])


def test_only_answers_go_to_stdout() -> None:
    """Only answers go to stdout: what Python code or a child process prints goes to stderr."""
    program = """
import os
from benchmarks.worker import reserve_stdout
answers = reserve_stdout()
print("from Python", flush=True)
os.system("echo from a child")
print("answer", file=answers, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "answer\n"
    assert done.stderr.splitlines()[-2:] == ["from Python", "from a child"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--strategy=ddp", "argument --strategy: 'ddp' is no strategy"),
        ("--vocab=100", "vocab=100 does not hold the 256 byte values"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(
    option: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad option ends the worker with exit status 2 and the message that `pytest benchmarks` gives."""
    monkeypatch.setattr("benchmarks.worker.reserve_stdout", io.StringIO)  # stdout is that of all tests
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, option])
    assert message in capsys.readouterr().err
