"""The environment and garbage collection while a command is imported."""

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT

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


@pytest.mark.parametrize("command", ["benchmarks show fsdp", "benchmarks strategies", "benchmarks schedule"])
def test_a_wrong_number_of_virtual_devices_is_refused_in_a_line(command: str) -> None:
    """JAX would refuse it with a traceback."""
    given = {**os.environ, "JAX_NUM_CPU_DEVICES": "zero"}
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, env=given, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("meshmark: error: JAX_NUM_CPU_DEVICES='zero' is no number of devices; give a whole")
    assert len(ended.stderr.splitlines()) == 1
