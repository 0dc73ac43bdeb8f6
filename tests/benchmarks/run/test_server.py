"""The timing server answers every request, whatever happens."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from threading import Thread
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.cases import case as benchmark_cases
from benchmarks.cases.failures import Mismatch
from benchmarks.cli.child import CONNECTION, PROTOCOL, Server, ServerFailure
from benchmarks.run.corpus import read_corpus
from benchmarks.run.measure import Training
from benchmarks.run.server import TimingServer, main, serve
from results.records.reading import Case
from tests.benchmarks.faulty_strategies import TOYS
from tests.benchmarks.run.engines import DATA
from tests.processes import ROOT, environment

TINY = ("--model=layers=1,embed=16,heads=2,sequence=16", "--batch-size=4", "--mesh=data=1")
SINGLE = "single-data=1-b4"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with one feasible and one infeasible case."""
    options = *TINY, "--strategy=single,tensor"
    with Server(options, folder=ROOT, environment=environment(), patience_seconds=600, quiet=True) as started:
        yield started


def test_hello_says_what_would_run(server: Server) -> None:
    """The server names its protocol, code, versions, devices, and cases with the exact gate's names."""
    answer = server.ask("hello")
    assert answer["protocol"] == PROTOCOL
    assert answer["root"] == str(ROOT)
    assert answer["environment"]["jax"] == jax.__version__
    assert answer["devices"] == "8 cpu"
    assert [facts["id"] for facts in answer["cases"]] == [SINGLE, "tensor-data=1-b4"]
    assert str(Case.of(answer["cases"][0], "the server")).startswith(f"test_step[{SINGLE}] nano,layers=1,embed=16")


def test_a_case_is_prepared_and_timed(server: Server) -> None:
    """A prepared case is timed in a block of as many steps as asked for; the server says how many fill a block."""
    begun = server.ask("prepare", case=SINGLE, alone=True)
    assert begun["losses"][0] == pytest.approx(np.log(256), abs=0.1)
    steps = server.ask("size", training=begun["training"])["steps"]
    assert server.ask("block", training=begun["training"], steps=10 * steps)["seconds"] > 0.05


def test_a_failure_is_an_answer(server: Server) -> None:
    """An error is answered with its status and a reason of one line, and the server goes on."""
    requests: list[tuple[dict[str, Any], str]] = [
        ({"do": "prepare", "case": "tensor-data=1-b4"}, "infeasible: mesh data=1 has the axis data; it can be tensor"),
        ({"do": "size", "training": 100}, "error: KeyError: 100"),
        ({"do": "dance"}, "error: AttributeError: .*'dance'"),
        ({"do": "_compiled"}, "error: KeyError: '_compiled'"),
    ]
    for request, reason in requests:
        with pytest.raises(ServerFailure, match=reason):
            server.ask(**request)
    assert server.ask("prepare", case=SINGLE, alone=True)["training"] == 1


def test_a_case_that_differs_from_one_device_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` answers for a sound case, and fails with the status of a mismatch for a wrong one."""
    monkeypatch.setattr(benchmark_cases, "STRATEGIES", TOYS)
    sound, wrong = DATA, replace(DATA, strategy="wrong")
    timing = TimingServer([sound, wrong], read_corpus(None, DATA.config), lambda: None)
    assert timing.check(str(sound)) == {"unchecked": ""}
    with pytest.raises(Mismatch, match="where one device has"):
        timing.check(str(wrong))


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
    timing, (ours, theirs) = TimingServer([], np.zeros(0, np.uint8), lambda: None), Pipe()
    timing.trainings[1] = Training(program, 0, [None])
    serving = Thread(target=serve, args=(timing, theirs))
    serving.start()
    ours.send((7, "block", {"training": 1, "steps": 2}))
    number, answer, failure = ours.recv()
    ours.close()
    serving.join()
    assert (number, answer, failure[0]) == (7, None, status)
    with pytest.raises(ServerFailure, match=reason):
        raise ServerFailure(*failure)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--strategy=ddp", "--strategy 'ddp' is not a strategy"),
        ("--model=vocab=100", "vocab=100 does not hold the 256 byte values"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(
    option: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad option ends the server with exit status 2 and the message that `pytest benchmarks` gives."""
    monkeypatch.delenv(CONNECTION, raising=False)
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, option])
    assert message in capsys.readouterr().err


def stub(program: str, patience_seconds: float = 60) -> Server:
    """A server that runs a program of its own."""
    made = Server(patience_seconds=patience_seconds, quiet=True)
    made._command = [sys.executable, "-c", program]
    return made


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("import os; os.abort()", "died", "SIGABRT"),
        ("import sys; print('my last words', file=sys.stderr); sys.exit(3)", "died", "exit status 3\nmy last words"),
        (
            "import sys; print('python -m benchmarks.run.server: no case', file=sys.stderr); sys.exit(2)",
            "refused",
            "no case",
        ),
        ("import time; time.sleep(600)", "hung", "no answer in 0.5 s"),
    ],
)
def test_a_server_that_ends_is_a_failure(program: str, status: str, reason: str) -> None:
    """A server that dies, refuses its options or does not answer in time is a failure that says how it ended."""
    with stub(program, 0.5 if status == "hung" else 60) as ending, pytest.raises(ServerFailure) as failure:
        ending.ask("hello")
    assert (failure.value.status, failure.value.reason) == (status, reason)
    assert ending._child is None
