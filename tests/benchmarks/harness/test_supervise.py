"""The supervisor of a run: what it hears it passes on, what it cannot hear it ends, and it is light."""

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
from benchmarks.harness import supervise
from benchmarks.harness.journal import journal_path
from benchmarks.harness.supervise import JOURNAL, run, running, stop_status
from benchmarks.statuses import TIMED_OUT
from tests.benchmarks.test_run import finish, rows, start, statuses
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
    """The parent of the supervisor ignores Ctrl-C, as a script does for its background; or not."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def supervised(program: str, journal: Path, timeout_seconds: float = 600) -> tuple[int, bool]:
    """How a program of Python ends that is run as the process that measures."""
    imports = "import os, signal, sys, threading, time\n"
    return run(
        [sys.executable, "-c", imports + program], environment(**{JOURNAL: journal}), timeout_seconds=timeout_seconds
    )


@pytest.mark.usefixtures("_interrupts")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_what_the_supervisor_alone_hears_is_passed_on(journal: Path, number: str) -> None:
    """Whoever stops it stops the run, whether or not its parent ignores Ctrl-C."""
    hears = f"signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))\nos.kill(os.getppid(), signal.{number})\n"
    assert supervised(f"{hears}time.sleep(600)", journal) == (3, True)


@pytest.mark.usefixtures("_interrupts")
def test_ctrl_c_while_libraries_are_loaded_prints_nothing(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that does not listen yet ends without a traceback, from whichever thread."""
    presses = "for pid in (os.getpid(), os.getppid()): os.kill(pid, signal.SIGINT)\ntime.sleep(600)"
    status, told = supervised(presses, journal)
    assert (status, told) == (-signal.SIGUSR1, True)
    assert stop_status(status, b"") == INTERRUPTED
    assert capfd.readouterr().err == "\nstopped before a case had begun\n"


def test_a_hang_is_named_and_ends_at_the_second_press(
    journal: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot hear is killed; until then it is said what is waited for, how long, and what to do."""
    monkeypatch.setattr(supervise, "PATIENCE_SECONDS", 0.0)
    deaf = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nos.kill(os.getppid(), signal.SIGINT)\n"
    # Once more when it has been said: the parent's line is then in the file that its stderr is.
    waits = "while b'stopping' not in open(f'/proc/{os.getppid()}/fd/2', 'rb').read(): time.sleep(0.1)\n"
    again = "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)"
    status, told = supervised(deaf + waits + again, journal)
    assert (status, told) == (-signal.SIGKILL, True)
    assert stop_status(status, BEGAN) == INTERRUPTED
    said = capfd.readouterr().err
    assert said.startswith("\nstopping: single cannot be interrupted right now; waiting 600 seconds at most")
    assert said.endswith("press Ctrl-C again to end it at once\n")


def test_many_presses_end_at_once(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """However often it is pressed, there is no traceback."""
    deaf = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    presses = "while True:\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(0.1)"
    assert supervised(deaf + presses, journal) == (-signal.SIGKILL, True)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("beats", "sleep", "status", "said"),
    [
        ("b'.'", 600, TIMED_OUT, ""),
        ("b'.!' + bytes([3])", 600, 3, "done, but their process hung during shutdown and was killed"),
        ("b''", 2, 5, ""),  # it takes as long as it takes to start
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
    """The process is ended, and counts as timed out, unless it has told another status; one that never beat is not."""
    monkeypatch.setattr(supervise, "GRACE_SECONDS", 0.0)
    program = f"os.write(int(os.environ['{HEARTBEAT}']), {beats})\ntime.sleep({sleep})\nos._exit(5)"
    assert supervised(program, journal, timeout_seconds=0.5) == (status, False)
    assert said in capfd.readouterr().err


def test_seconds_in_which_the_listener_was_stopped_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z, for however long, the other process has its whole time again."""
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
    """Its listener hears it, and at last the exit status; where nobody listens there is none."""
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


def test_what_runs_is_what_began_last() -> None:
    """By the last whole line of the journal, whatever is cut off."""
    assert running(BEGAN + b'{"began": "da') == "single"
    assert running(b"") is running(BEGAN + b'{"row": {}}\n') is None


def test_the_supervisor_loads_no_jax() -> None:
    """It starts in a fraction of the time; what it refuses, it refuses at once."""
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
    assert "benchmarks.harness.supervise" in loaded
    assert not loaded & {"jax", "jaxlib", "flax", "optax", "strategies"}


def test_stopping_the_supervisor_alone_stops_the_run(tmp_path: Path) -> None:
    """Ctrl-C that nobody else hears: exit status 130, and a report with the numbers of what had ended, and a row for
    the rest; a supervisor that was itself stopped for a while, and goes on, has lost nothing.
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
    """The first says what is waited for, and the second ends it; what had ended is in the journal."""
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
