"""What runs in the measuring process before the first timed block: few files of `benchmarks`."""

import os
import subprocess
import sys
from pathlib import Path

import benchmarks
from tests.benchmarks.running import TINY
from tests.processes import ROOT, environment

MOST_FILES = 32
COUNT = """
import os, sys
from multiprocessing import Pipe
from benchmarks.cli.options import MEASURE, measuring_options
from benchmarks.cli.parser import Command
from benchmarks.run import program

room, called = sys.argv[1], set()
supervisor, connection = Pipe()
supervisor.send(measuring_options(Command("", "", *MEASURE).parser("").parse_args(sys.argv[2:])))
supervisor.send(["single-data=1-b4", "fsdp-fsdp=2-b4"])

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(room):
        called.add(os.path.relpath(code.co_filename, room))
        if code.co_name == "time_interleaved":
            sys.setprofile(None)
            print(*sorted(called), sep="\\n", flush=True)
            os._exit(0)

sys.setprofile(note)
program.main(connection)
"""
"""Measures as under a supervisor, prints the files in which a function is called, and ends at the first timed block."""


def test_few_files_run_before_the_first_timed_block(tmp_path: Path) -> None:
    """From the options to the first timed block of `single` and `fsdp`, functions of this many files are called."""
    room = f"{Path(benchmarks.__file__).parent}{os.sep}"
    run = subprocess.run(
        [sys.executable, "-c", COUNT, room, *TINY, "--strategy=single,fsdp", "--devices=1,2"],
        cwd=ROOT,
        env=environment(MESHMARK_JOURNAL=tmp_path / "run.journal.jsonl"),
        capture_output=True,
        text=True,
        check=True,
    )
    files = [line for line in run.stdout.splitlines() if line.endswith(".py")]
    assert "run/timing_group.py" in files
    assert len(files) <= MOST_FILES, files
