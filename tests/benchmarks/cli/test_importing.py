"""The environment and garbage collection while a command is imported."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.starting import UNUSABLE, steps_problem
from tests.processes import ROOT, environment

FREE_SPACE = "free space, or redirect the output"

PROGRAM = """
import gc, sys
sys.argv = [sys.argv[1]]
from benchmarks.cli.ending import run
print(not gc.isenabled())
run(lambda: print(gc.isenabled(), gc.get_freeze_count() > 0))
"""


@pytest.mark.parametrize(("program", "paused"), [("-m", True), ("/usr/bin/meshmark", True), ("mine.py", False)])
def test_collection_is_paused_until_a_command_runs(program: str, paused: bool) -> None:
    """Libraries of a command are imported with hardly any collection, and are never scanned. When the command runs,
    garbage is collected as usual. A program that imports the package keeps its own settings.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{paused}\nTrue {paused}\n"


def ended(command: str, folder: Path = ROOT, stdout: Any = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `meshmark COMMAND` in a folder, with variables of the environment."""
    start = [sys.executable, "-P", "-m", "benchmarks", *command.split()]
    given = environment(**variables)
    return subprocess.run(start, cwd=folder, env=given, stdout=stdout, stderr=subprocess.PIPE, text=True)


HELPS = "--help", "--version", "show --help"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_help_that_cannot_be_printed_ends_in_a_line(unbuffered: str) -> None:
    """On a full disk, and quietly where the reader of a pipe has ended, as `head` does; however stdout is buffered."""
    for command in HELPS:
        with Path("/dev/full").open("w") as full:
            done = ended(command, stdout=full, PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == 5
        assert done.stderr == f"the output cannot be written: {os.strerror(errno.ENOSPC)}; {FREE_SPACE}\n"
        read, write = os.pipe()
        os.close(read)
        done = ended(command, stdout=write, PYTHONUNBUFFERED=unbuffered)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_folder_that_is_gone_is_said_in_a_line(tmp_path: Path) -> None:
    """Every command says that its working directory is gone, as that of a job may be, and how to go on."""
    (tmp_path / "gone").mkdir()
    for command in ("schedule 1f1b --stages=2 --microbatches=2", "measure --strategy=single", "launch --processes=2"):
        code = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, sys.orig_argv[:1] + sys.argv[1:])"
        start = [sys.executable, "-c", code, "-P", "-m", "benchmarks", *command.split()]
        (tmp_path / "gone").mkdir(exist_ok=True)
        done = subprocess.run(start, cwd=tmp_path / "gone", env=environment(), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"meshmark: error: the working directory cannot be found .*; change to .*\n", done.stderr)


def test_options_of_pytest_that_cannot_be_read_are_named() -> None:
    """PYTEST_ADDOPTS with an open quote is refused in a line by the commands that start pytest."""
    for command in ("measure --strategy=single", "launch --processes=2"):
        done = ended(command, PYTEST_ADDOPTS="-k 'fsdp")
        assert done.returncode == 2
        assert re.search(r"^meshmark .*: PYTEST_ADDOPTS=.* cannot be read: No closing quotation; correct", done.stderr)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["benchmarks show fsdp", "benchmarks doctor", "benchmarks schedule"])
def test_a_wrong_number_of_virtual_devices_is_refused_in_a_line(command: str) -> None:
    """JAX would refuse it with a traceback."""
    given = {**os.environ, "JAX_NUM_CPU_DEVICES": "zero"}
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, env=given, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("meshmark: error: JAX_NUM_CPU_DEVICES='zero' is not a number of devices; use a")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("pytest benchmarks", 4),
        ("benchmarks train", 2),
        ("benchmarks search --topology=h100:1x8 --batch-size=8", 2),
        ("benchmarks compile --topology=cpu:2", 2),
    ],
)
@pytest.mark.parametrize("setting", ["JAX_ENABLE_X64", "JAX_DISABLE_JIT"])
def test_settings_that_change_all_steps_are_refused_in_a_line(command: str, status: int, setting: str) -> None:
    """Steps would have other dtypes than their rows say, or would not be compiled. Other values are not refused."""
    given = environment(**{setting: "True"})
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, env=given, capture_output=True, text=True
    )
    assert ended.returncode == status, ended.stderr
    assert f"{setting}=True: steps " in ended.stderr
    assert ended.stderr.strip().endswith("; unset it")
    assert len(ended.stderr.strip().splitlines()) == 1


def test_settings_that_are_off_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch of JAX that is set to no is off."""
    for setting in UNUSABLE:
        monkeypatch.setenv(setting, "0")
    assert steps_problem() == ""
    monkeypatch.setenv("JAX_DISABLE_JIT", "on")
    assert steps_problem() == "JAX_DISABLE_JIT=on: steps must be compiled; unset it"
