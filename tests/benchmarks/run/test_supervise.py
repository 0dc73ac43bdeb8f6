"""The supervisor passes on stop signals, ends a process that does not answer them, and does not load JAX."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster.heartbeat import HEARTBEAT, HeartbeatListener, HeartbeatSender
from benchmarks.commandline.ending import INTERRUPTED
from benchmarks.commandline.statuses import TIMED_OUT
from benchmarks.run import supervise
from benchmarks.run.journal import journal_path
from benchmarks.run.supervise import JOURNAL, run, running, stop_status
from tests.benchmarks.running import finish, rows, start, statuses
from tests.processes import ROOT, environment

BEGAN = b'{"began": "single"}\n'


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The journal of a run in its first case."""
    path = tmp_path / "run.journal.jsonl"
    path.write_bytes(BEGAN)
    return path


@pytest.fixture(params=[signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "heard"])
def _interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """The parent of the supervisor ignores Ctrl-C, as a shell script's background job does, or does not."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def supervised(program: str, journal: Path, timeout_seconds: float = 600) -> tuple[int, bool]:
    """Supervise a Python program; its exit status, and whether it was told to stop."""
    imports = "import os, signal, sys, threading, time\n"
    return run(
        [sys.executable, "-c", imports + program], environment(**{JOURNAL: journal}), timeout_seconds=timeout_seconds
    )


@pytest.mark.usefixtures("_interrupts")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_signals_to_the_supervisor_are_passed_on(journal: Path, number: str) -> None:
    """SIGINT and SIGTERM to the supervisor stop the measuring process, even if the parent ignores Ctrl-C."""
    hears = f"signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))\nos.kill(os.getppid(), signal.{number})\n"
    assert supervised(f"{hears}time.sleep(600)", journal) == (3, True)


@pytest.mark.usefixtures("_interrupts")
def test_ctrl_c_while_libraries_are_loaded_prints_nothing(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that is stopped before it can handle signals ends without a traceback."""
    presses = "for pid in (os.getpid(), os.getppid()): os.kill(pid, signal.SIGINT)\ntime.sleep(600)"
    status, told = supervised(presses, journal)
    assert (status, told) == (-signal.SIGUSR1, True)
    assert stop_status(status, b"") == INTERRUPTED
    assert capfd.readouterr().err == "\nstopped before a case had begun\n"


def test_a_hang_is_named_and_ends_at_the_second_press(
    journal: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ignores a stop is named with the time it may take, and a second Ctrl-C kills it."""
    monkeypatch.setattr(supervise, "PATIENCE_SECONDS", 0.0)
    deaf = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nos.kill(os.getppid(), signal.SIGINT)\n"
    # Press again when the parent's message is in the file that its stderr is redirected to.
    waits = "while b'stopping' not in open(f'/proc/{os.getppid()}/fd/2', 'rb').read(): time.sleep(0.1)\n"
    again = "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)"
    status, told = supervised(deaf + waits + again, journal)
    assert (status, told) == (-signal.SIGKILL, True)
    assert stop_status(status, BEGAN) == INTERRUPTED
    said = capfd.readouterr().err
    assert said.startswith("\nstopping: single cannot be interrupted right now; waiting 600 seconds at most")
    assert said.endswith("press Ctrl-C again to end it at once\n")


def test_many_presses_end_at_once(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """However often Ctrl-C is pressed, the process is killed and no traceback is printed."""
    deaf = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    presses = "while True:\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(0.1)"
    assert supervised(deaf + presses, journal) == (-signal.SIGKILL, True)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("beats", "sleep", "status", "said"),
    [
        ("b'.'", 600, TIMED_OUT, ""),
        ("b'.!' + bytes([3])", 600, 3, "done, but their process hung during shutdown and was killed"),
        ("b''", 2, 5, ""),  # starting may take any time
    ],
    ids=["hangs", "done", "starting"],
)
def test_a_heart_that_stops_beating_is_noticed(
    beats: str,
    sleep: int,
    status: int,
    said: str,
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A process whose heartbeat stops is ended as timed out, or with the status it sent; one yet to start is not."""
    monkeypatch.setattr(supervise, "GRACE_SECONDS", 0.0)
    program = f"os.write(int(os.environ['{HEARTBEAT}']), {beats})\ntime.sleep({sleep})\nos._exit(5)"
    assert supervised(program, journal, timeout_seconds=0.5) == (status, False)
    assert said in capfd.readouterr().err


def test_seconds_in_which_the_listener_was_stopped_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in which the supervisor itself was stopped, as by Ctrl-Z, does not count as silence of the other process."""
    listener, now = HeartbeatListener(), [0.0]
    monkeypatch.setattr("benchmarks.cluster.heartbeat.time.monotonic", lambda: now[0])
    os.write(listener.descriptor, b".")
    listener.listen(1)

    def stop(*_: object) -> tuple[list[int], ...]:
        now[0] += 1000
        return [], [], []

    monkeypatch.setattr("benchmarks.cluster.heartbeat.select.select", stop)
    listener.listen(1)
    assert listener.silent_seconds == 2
    listener.started()
    listener.close()


def test_a_heart_beats_until_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener hears the heartbeat and in the end the exit status; without a listener there is no heartbeat."""
    HeartbeatSender().stop(0)
    listener = HeartbeatListener()
    monkeypatch.setenv(HEARTBEAT, str(listener.descriptor))
    heart = HeartbeatSender()
    assert HEARTBEAT not in os.environ
    listener.listen(60)
    assert (listener._heard, listener.status) == (True, None)
    heart.stop(1)
    while listener.status is None:
        listener.listen(60)
    assert (listener.status, listener.silent_seconds) == (1, 0)
    listener.started()
    listener.close()


def test_the_running_case_is_the_one_that_began_last() -> None:
    """The running case is the last one that began in the journal's whole lines."""
    assert running(BEGAN + b'{"began": "da') == "single"
    assert running(b"") is running(BEGAN + b'{"row": {}}\n') is None


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
