"""The supervisor passes on stop signals, replaces a process that died or hangs, and does not load JAX."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.cli.statuses import INTERRUPTED, PEER_LOST, REFUSED, UNWRITTEN
from benchmarks.run import supervise
from benchmarks.run.journal import journal_path
from benchmarks.run.supervise import Ended, Supervisor
from tests.benchmarks.running import finish, rows, start, statuses
from tests.processes import ROOT, environment

TELL = """
import os, signal, sys, time
from multiprocessing.connection import Connection
supervisor = Connection(int(os.environ["MESHMARK_CONNECTION"]))
options = supervisor.recv()
def tell(**entry): supervisor.send(entry)
def begin(): tell(cases=["a"], first=True, machine={}); supervisor.recv(); tell(began="a")
def end(status=0, why=""): tell(stopped=True); tell(ended=status, why=why, interrupted=[])
row = {"row": {"case": "a", "extra_info": {"status": "ok"}, "samples": [], "steps_per_block": None}}
"""
DEAF = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
Start = Callable[..., Supervisor]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Start]:
    """A function that supervises a Python program, and lets it measure the case "a"."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    begun: list[Supervisor] = []

    def start(program: str, *, alone: bool = True, timeout_seconds: float = 600.0) -> Supervisor:
        journal = tmp_path / "run.journal.jsonl"
        run = Supervisor({}, journal, alone=alone, timeout_seconds=timeout_seconds, listing=False)
        run._command = [sys.executable, "-c", TELL + program]
        begun.append(run)
        run.begin()
        run.select(["a"])
        return run

    yield start
    for run in begun:
        run.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(params=[signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "heard"])
def _interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """The parent of the supervisor ignores Ctrl-C, as a shell script's background job does, or does not."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def ended(run: Supervisor) -> Ended:
    """How a run ends before its case does."""
    with pytest.raises(Ended) as end:
        run.row("a")
    assert run.finish() == end.value.status
    return end.value


@pytest.mark.usefixtures("_interrupts")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_signals_to_the_supervisor_are_passed_on(supervised: Start, number: str) -> None:
    """SIGINT and SIGTERM to the supervisor stop the measuring process, even if the parent ignores Ctrl-C."""
    hears = "signal.signal(signal.SIGUSR1, lambda *_: (end(130), os._exit(130)))\nbegin()\n"
    end = ended(supervised(f"{hears}os.kill(os.getppid(), signal.{number})\ntime.sleep(600)"))
    assert (end.status, end.reason) == (INTERRUPTED, "stopped; continue with --resume")


@pytest.mark.usefixtures("_interrupts")
def test_ctrl_c_while_libraries_are_loaded_prints_nothing(supervised: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that is stopped before it can handle signals ends without a traceback."""
    presses = "for pid in (os.getpid(), os.getppid()): os.kill(pid, signal.SIGINT)\ntime.sleep(600)"
    with pytest.raises(Ended) as end:
        supervised(presses)
    assert end.value.status == INTERRUPTED
    assert capfd.readouterr().err == "\nstopped before a case had begun\n"


def test_a_hang_is_named_and_ends_at_the_second_press(
    supervised: Start, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ignores a stop is named with the time it may take, and a second Ctrl-C kills it."""
    monkeypatch.setattr(supervise, "PATIENCE_SECONDS", 0.0)
    press = "os.kill(os.getppid(), signal.SIGINT)\n"
    # Press again when the parent's message is in the file that its stderr is redirected to.
    waits = "while b'stopping' not in open(f'/proc/{os.getppid()}/fd/2', 'rb').read(): time.sleep(0.1)\n"
    end = ended(supervised(f"{DEAF}begin()\n{press}{waits}{press}time.sleep(600)"))
    assert end.status == INTERRUPTED
    said = capfd.readouterr().err
    assert said.startswith("\nstopping: a cannot be interrupted right now; waiting 600 seconds at most")
    assert "press Ctrl-C again to end it at once\n" in said
    assert said.endswith("run.journal.jsonl has the finished cases: continue with --resume\n")


def test_many_presses_end_at_once(supervised: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """However often Ctrl-C is pressed, the process is killed and no traceback is printed."""
    presses = "while True:\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(0.1)"
    assert ended(supervised(f"{DEAF}begin()\n{presses}")).status == INTERRUPTED
    assert "Traceback" not in capfd.readouterr().err


DIES_ONCE = "'MESHMARK_RESUMED' in os.environ or {}\ntell(**row)\nend()"


@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("os.abort()", "SIGABRT"),
        ("os._exit(7)", "exit status 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, usually sent when memory runs out"),
        ("time.sleep(600)", "a case that timed out"),
        ("tell(began='a') or time.sleep(600)", "a case that timed out"),
    ],
)
def test_a_process_that_dies_or_hangs_is_replaced(
    supervised: Start, death: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that dies in a case, or whose journal does not grow, is replaced; the next one knows why."""
    run = supervised(f"begin()\n{DIES_ONCE.format(death)}", timeout_seconds=2)
    assert run.row("a").extra_info == {"status": "ok"}
    assert run._environment[supervise.RESUMED] == said
    assert run.finish() == 0
    assert capfd.readouterr().err == f"\nthe benchmarks were ended by {said}; continuing with the remaining cases\n"


@pytest.mark.parametrize(("death", "status"), [("os._exit(7)", 7), ("os._exit(0)", 1), ("os.abort()", 134)])
def test_processes_that_die_again_and_again_end_the_run(supervised: Start, death: str, status: int) -> None:
    """A case that ends every process, even after it has been given up, ends the run, and not with status 0."""
    end = ended(supervised(f"begin(); {death}"))
    assert end.status == status
    assert end.reason.startswith("3 processes ended after a began, the last by ")


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("begin(); tell(stopped=True); os.abort()", 134, "ended by SIGABRT"),  # after all cases were measured
        (f"begin(); end({UNWRITTEN}, 'no room')", UNWRITTEN, "no room"),
        (f"begin(); end({PEER_LOST}, 'process 1 is gone')", PEER_LOST, "process 1 is gone"),
        ("begin(); tell(refused='no sense')", REFUSED, "no sense"),  # the journal is another run's
        ("begin(); end(3); time.sleep(600)", 3, ""),  # it hangs while Python or JAX shuts down
    ],
)
def test_a_process_that_ends_on_purpose_is_not_replaced(
    supervised: Start, program: str, status: int, reason: str
) -> None:
    """A run that has ended in order, or cannot go on, ends with its status and its reason."""
    end = ended(supervised(program, timeout_seconds=2))
    assert (end.status, reason in end.reason) == (status, True)
    assert supervise.RESUMED not in os.environ


def test_a_process_that_dies_before_its_cases_ends_the_run(supervised: Start) -> None:
    """A process that dies before it has cases is not tried again; however long it takes to start, it is waited for."""
    with pytest.raises(Ended) as end:
        supervised("time.sleep(2); os.abort()", timeout_seconds=0.5)
    assert end.value.status == 134


def test_one_of_several_processes_is_not_replaced(supervised: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """Where several processes measure together, a death ends the run, and says where the finished rows are."""
    assert ended(supervised("begin(); os.kill(os.getpid(), 9)", alone=False)).status == 137
    assert "and so were all other processes; " in capfd.readouterr().err


def test_seconds_in_which_the_supervisor_was_stopped_do_not_count(
    supervised: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time in which the supervisor itself was stopped, as by Ctrl-Z, does not count as silence of the other process."""
    run, now = supervised("begin(); time.sleep(600)"), [0.0]
    child: Any = run._child
    while not run._running:
        run._listen(child)

    def stop(seconds: float) -> bool:
        now[0] += 1000
        return False

    monkeypatch.setattr("benchmarks.run.supervise.time.monotonic", lambda: now[0])
    child = SimpleNamespace(connection=SimpleNamespace(poll=stop))
    run._listen(child)
    assert run._silent_seconds == 2 * supervise.TICK_SECONDS


def test_the_supervisor_loads_no_jax() -> None:
    """The supervisor imports neither JAX nor the registry of strategies: it starts fast and refuses bad options."""
    command = [sys.executable, "-X", "importtime", "-m", "pytest", "benchmarks", "--strategy=fsdp", "--mesh=fsdp=2"]
    process = subprocess.run(
        [*command, "--preset=micro", "--option=gather=step", "--devices=2"],  # refused by the process that measures
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    loaded = set(re.findall(r"\| +([\w.]+)$", process.stderr, re.MULTILINE))
    assert "benchmarks.run.supervise" in loaded
    assert not loaded & {"jax", "jaxlib", "flax", "optax", "strategies.registry"}


def test_stopping_the_supervisor_alone_stops_the_run(tmp_path: Path) -> None:
    """SIGINT to the supervisor alone ends the run with status 130 and a report of all cases; a supervisor that was
    stopped by SIGSTOP for a while goes on without loss.
    """
    report = tmp_path / "run.json"
    command = "--strategy=pausing,stopped_above", "--mesh=data=1", "--batch-size=4,8", f"--benchmark-json={report}"
    process = finish(start(*command))
    assert process.returncode == INTERRUPTED, process.stderr
    assert statuses(report) == {
        "pausing-data=1-b4": "ok",
        "stopped_above-data=1-b4": "ok",
        "pausing-data=1-b8": "interrupted",
        "stopped_above-data=1-b8": "interrupted",
    }
    found = rows(report)
    matches = [row["extra_info"]["matches_single"] for row in found.values()]
    assert matches == [True, True, True, None]  # the third was checked, and not timed
    assert [bool(row["stats"]["data"]) for row in found.values()] == [True, True, False, False]
    assert "Traceback" not in process.stderr
    assert "continuing with the remaining cases" not in process.stderr, "one process measured all"
    assert journal_path(report).read_text().count('{"start": ') == 1


def test_a_case_that_hangs_is_left_at_the_second_press(tmp_path: Path) -> None:
    """A first Ctrl-C names the case that hangs, a second ends it, and the journal has the case as begun."""
    report = tmp_path / "run.json"
    command = "--strategy=single,deaf", "--mesh=data=1", f"--benchmark-json={report}"
    with start(*command, alone=True, ONCE=tmp_path) as process:
        while not (tmp_path / "hanging").exists():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stderr
        said = ""
        while "stopping: " not in said:
            said += process.stderr.readline()
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=120)[1]
    assert "stopping: deaf-data=1-b4 cannot be interrupted right now; waiting " in said
    assert "Traceback" not in said
    assert process.returncode == INTERRUPTED
    assert b'"began": "deaf-data=1-b4"' in (tmp_path / "run.journal.jsonl").read_bytes()
