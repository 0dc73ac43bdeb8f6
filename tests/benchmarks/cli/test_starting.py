"""What a command started ends with it, also if it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.starting import PARENT
from tests.benchmarks.running import COMMAND, TINY
from tests.processes import LIMIT_SECONDS, ROOT, environment
from tests.strategies.sampling import nightly

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

SOON_SECONDS, LOADING_SECONDS = 2.0, 30.0
LAUNCH = (sys.executable, "-m", "benchmarks", "launch", "--processes=2", "--", *TINY)
LONG = "--strategy=single,data", "--devices=2", "--rounds=1000000"


def children(process: int) -> list[int]:
    """Ids of the processes that descend from one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == process:
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


def running(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def began(journal: Path) -> int:
    """How often a case, or a block of it, has begun."""
    return journal.read_text().count("began") if journal.exists() else 0


@pytest.mark.parametrize("command", [(*LAUNCH, *LONG), *nightly(((*COMMAND, *LONG),))], ids=["launch", "run"])
def test_nothing_outlives_a_command_that_is_killed(command: tuple[str, ...], tmp_path: Path) -> None:
    """After SIGKILL of the process that was started, all others are gone within two seconds, or once they are loaded.

    Those that still load Python and its packages take longer on a busy machine.
    """
    env = environment(JAX_NUM_CPU_DEVICES=2, SINGLE="")
    journal = tmp_path / "run.journal.jsonl"
    for begun in (0, 8):  # while libraries are loaded, and when steps are timed
        with (tmp_path / "said").open("w") as said:
            arguments = [*command, f"--benchmark-json={tmp_path}/run.json"]
            process = subprocess.Popen(arguments, cwd=ROOT, env=env, stdout=said, stderr=said)
        deadline = time.monotonic() + LIMIT_SECONDS
        while not children(process.pid) or began(journal) < begun:
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert left_of_killed(process, SOON_SECONDS if begun else LOADING_SECONDS) == []


def left_of_killed(process: subprocess.Popen[Any], seconds: float) -> list[int]:
    """Kill a process, and return those of its children that still run after some seconds."""
    left = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + seconds
    while any(map(running, left)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [each for each in left if running(each)]


def test_no_fork_outlives_a_program_that_is_killed() -> None:
    """Processes that share short tasks are gone soon after the process that forked them, also if they are busy."""
    work = "from benchmarks.run import pool; from tests.benchmarks.piecework import go; pool.MANY_TASKS = 1"
    code = f"{work}; print([*pool.mapped(go, ['sleeps'] * 2 * pool.CHUNK_TASKS, 2)])"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment())
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(children(process.pid)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left_of_killed(process, SOON_SECONDS) == []


def test_a_command_outlives_a_shell() -> None:
    """A process that a user started goes on without its parent, as under nohup."""
    code = "import benchmarks, os, time; parent = os.getppid(); print(os.getpid(), flush=True); time.sleep(600)"
    shell = [sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]).wait()"]
    inherited = {name: value for name, value in os.environ.items() if name != PARENT}
    with subprocess.Popen(shell, cwd=ROOT, env=inherited, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        own = int(process.stdout.readline())
        process.kill()
        process.wait()
        time.sleep(1)
        assert running(own)
        os.kill(own, signal.SIGKILL)
