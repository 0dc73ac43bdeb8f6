"""Bad input of each command: its exit code, a message that says what is wrong, and no traceback."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.commands import assert_refused, ended
from tests.results.documents import SCHEDULE, searches
from tests.results.synthetic import edited, row, write_run

ROOT = Path(__file__).parent.parent
LONG = "x" * 300
NO_NUMBERS = {"tokens_per_second": None, "step_seconds_median": None, "devices": None}
TINY = "--model=layers=2,embed=16,heads=2,vocab=256,sequence=16 --batch-size=8 --strategy=data --remat=dots"
SEARCH = f"search --topology=v5e:2x2 {TINY} --compile=0"
EVIL = f"{'../' * 3}evil"

TABLE: dict[str, tuple[int, str]] = {
    # outputs that cannot be written
    "plot run.json --out=file": (5, "file cannot be written to: file is not a folder; name another folder"),
    "plot run.json --out=x.csv": (5, "x.csv is named like a file, and would be a folder; remove .csv"),
    "regress baseline run.json --out=x.JSON": (
        5,
        "x.JSON is named like a file, and would be a folder; remove .JSON",
    ),
    "plot run.json --out=file/in": (5, "cannot be written to: Not a directory"),
    f"plot run.json --out={LONG}": (5, "cannot be written to: File name too long"),
    "page run.json --out=folder.png": (5, "folder.png cannot be written: Is a directory"),
    "page run.json --out=file/in.html": (5, "cannot be written: file is not a folder"),
    f"page run.json --out={LONG}.html": (5, "cannot be written: File name too long"),
    "plot found.json --out=folder.png": (5, "folder.png cannot be written: Is a directory"),
    "plot found.json --out=file/in.png": (5, "cannot be written: file is not a folder"),
    "plot found.json --out=x.xyz": (5, "x.xyz has no suffix of a picture; it can be ."),
    f"plot found.json --out={LONG}.png": (5, "cannot be written: File name too long"),
    "plot - --out=folder.png": (5, "folder.png cannot be written: Is a directory"),
    f"plot - --out={LONG}.png": (5, "cannot be written: File name too long"),
    "regress exact run.json run.json --markdown=folder.png": (5, "folder.png cannot be written: Is a dir"),
    "regress exact run.json run.json --junit=file/x.xml": (5, "cannot be written: file is not a folder"),
    f"regress exact run.json run.json --bencher-json={LONG}": (5, "cannot be written: File name too long"),
    "regress exact run.json run.json --action-json=/dev/full": (5, "/dev/full cannot be written: No space"),
    "regress baseline run.json --out=file": (5, "file cannot be written to: file is not a folder"),
    f"{SEARCH} --json=folder.png": (5, "folder.png cannot be written: Is a directory"),
    f"{SEARCH} --json=file/x.json": (5, "cannot be written: file is not a folder"),
    f"{SEARCH} --trace=file/x.json": (5, "cannot be written: file is not a folder"),
    "train --steps=1 --out=file": (5, "file cannot be written to: "),
    f"{SEARCH} --json={LONG}": (5, "cannot be written: File name too long"),
    f"{SEARCH} --json=/dev/full": (5, "/dev/full cannot be written: No space left on device; the result is in"),
    # outputs that are inputs, or each other
    "regress exact run.json run.json --markdown=run.json": (5, "--markdown run.json would overwrite the input"),
    "regress exact run.json run.json --junit=x --markdown=x": (5, "would overwrite the output of --markdown"),
    "page run.json --out=page.png": (5, "page.png has the suffix of a picture, and this file is not one; name another"),
    "page run.json --out=run.json": (5, "--out run.json would overwrite the input run.json; name another"),
    "plot found.png": (5, "the picture found.png would overwrite the input found.png; name another"),
    # outputs with the suffix of another format
    "calibrate --out=mine.csv": (5, "mine.csv has the suffix of another format, and this file is json; use .json"),
    "predict runs.csv --out=x.json": (5, "x.json has the suffix of another format, and this file is csv; use .csv"),
    "export run.json --out=x.csv --format=markdown": (5, "and this file is md; use .md"),
    "regress exact run.json run.json --junit=x.json": (5, "and this file is xml; use .xml"),
    f"{SEARCH} --json=x.md": (5, "x.md has the suffix of another format, and this file is json"),
    "page run.json --out=-": (5, "- is not the name of a file; name another file, or /dev/stdout to print it"),
    # files that are JSON but not what is expected
    "plot missing.json": (5, "missing.json does not exist"),
    "plot no-numbers.json": (
        5,
        "nothing to draw: no row was timed and equal to one device (1 without strategy or devices or",
    ),
    "plot no-devices.json": (5, "devices is 0; it must be a whole number of at least 1"),
    "plot negative.json": (5, "tokens_per_second is -1; it must be a number above 0"),
    "plot no-batch.json": (5, "global_batch_sequences is 0; it must be a whole number"),
    "plot run.json --batch-size=0": (2, "'0' is not a count; use a whole number of at least 1"),
    "plot file.txt": (5, "or not JSON: Input data was truncated; name a file of `measure --benchmark-json`, `train`"),
    "page file.txt": (5, "or not JSON: Input data was truncated; write it with `pytest benchmarks --benchmark-json"),
    "predict file.txt": (5, "file.txt lacks the columns stack, device, devices, devices_per_host, layers and 12 more;"),
    "export run.json --at=3": (2, "--at and --dtype are of a checkpoint; pass --to-huggingface FOLDER, or remove them"),
    "show --mesh=tensor=7": (2, "tensor=7 does not divide heads=8; tensor can be 1, 2, 4 or 8"),
    "page list.json": (5, "is JSON but not pytest-benchmark's"),
    "page negative.json": (5, "tokens_per_second is -1; it must be a number above 0"),
    "page run.json run.json": (5, "is both in run.json and in run.json"),
    "page texts.json": (5, "candidates[0]: needed_bytes is 'many'; it must be a number"),
    "page old.json": (5, "old.json was not written by `meshmark search --json FILE` of this version"),
    "plot texts.json": (5, "candidates[0]: needed_bytes is 'many'; it must be a number"),
    "plot no-chips.json": (5, "devices is 0; it must be a whole number of at least 1"),
    "regress exact run.json negative-counter.json": (5, "compiled.flops is -1; it must be a number"),
    "regress baseline list.json": (5, "is JSON but not pytest-benchmark's"),
    # what means nothing
    "schedule gpipe --stages=0 --microbatches=1": (2, "'0' is not a count; use a whole number of at least 1"),
    "schedule gpipe --stages=1 --microbatches=0": (2, "argument --microbatches: '0' is not a count"),
    "schedule interleaved --stages=1 --microbatches=1 --chunks=0": (2, "argument --chunks: '0' is not a count"),
    "schedule 1f1b --stages=100000 --microbatches=1": (2, "cells; use fewer, for at most 600,000 cells"),
    "show zero1 --mesh=data=2,tensor=2": (2, "zero1 has no axis tensor; mesh data=2,tensor=2 takes a"),
    "show fsdp --mesh=fsdp=4 --topology=v5p:4x4x4": (2, "uses 4 devices; it must use all 64 of v5p:4x4x4"),
    "show fsdp --topology=v5p": (2, "topology 'v5p' cannot be read; write one as v5p:4x4x4, h100"),
    "show fsdp tensor --png=x.png": (2, "--png draws one strategy, and 2 are named; name one"),
    "show fsdp --png=x.xyz": (2, "argument --png: 'x.xyz' has no suffix of a picture; it can be ."),
    "schedule gpipe --stages=2 --microbatches=2 --png=x": (2, "argument --png: 'x' has no suffix of a picture"),
    "show data --option=gather=step": (2, "gather=step changes nothing with the axis data; omit it"),
    "show tensor --mesh=tensor=3 --option=sequence_parallel=1": (2, "'1' is neither true nor false"),
    "launch --processes=2 --strategy=fsdp": (2, "unrecognized arguments: --strategy=fsdp; options of `meshmark"),
    "show fsdp --mesh=fsdp=4 --batch-size=0": (2, "argument --batch-size: '0' is not a count"),
    f"{SEARCH} --time-budget=5": (2, "--time-budget is of --compile; pass --compile, too"),
    "train --temperature=0.5 --steps=1": (2, "--temperature is of --sample; pass --sample, too"),
    f"{SEARCH} --option=chunks=3 --option=schedule=gpipe": (
        2,
        "one of pipeline, three_d and needs schedule=inter",
    ),
    f"{SEARCH} --model=experts=many": (2, "experts is 'many'; it must be a whole number or none"),
    f"{SEARCH} --compile=-1": (2, "'-1' is not a number; use a whole number of at least 0"),
    f"{SEARCH} --topology=cpu:999999": (2, "has 999,999 devices; take 65,536 or fewer"),
    f"{SEARCH} --topology=v4-8": (2, "what Cloud TPU calls v5e-16 is v5e:4x4, and v4-8 is v4:2x2x1"),
    f"{SEARCH} --topology=h100:8": (2, "write one as h100:16x8"),
    f"{SEARCH} --mesh=tensor=4": (2, "data has no axis tensor; mesh tensor=4 takes a strategy with"),
    f"{SEARCH} --strategy=zero3": (2, "'zero3' is not a strategy; use one of single, data, "),
    f"{SEARCH} --batch-size=0": (2, "'0' is not a count"),
}


@pytest.fixture(scope="module")
def inputs(valid_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of input files: valid ones and bad ones."""
    folder = shutil.copytree(valid_files, tmp_path_factory.mktemp("inputs") / "files")
    (folder / "folder.png").mkdir()
    for name in ("file", "file.txt"):
        (folder / name).write_text("")
    changed: dict[str, dict[str, Any]] = {
        "no-numbers": NO_NUMBERS,
        "no-devices": {"devices": 0},
        "negative": {"tokens_per_second": -1},
        "no-batch": {"global_batch_sequences": 0},
        "negative-counter": {"compiled.flops": -1},
    }
    for name, facts in changed.items():
        write_run(folder / f"{name}.json", [edited(row(), facts)])
    for name, content in {"list.json": [], **searches()}.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("command", TABLE)
def test_bad_input_is_refused_in_a_line(
    command: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input exits with the documented code and a message that says what is wrong, and no input changes."""
    before = {path: path.read_bytes() for path in inputs.glob("*.*") if path.is_file()}
    monkeypatch.chdir(inputs)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # what cannot be written where it should be is saved there
    exit_code, words = TABLE[command]
    assert_refused(command, exit_code, re.escape(words), json.dumps(SCHEDULE).encode())
    assert {path: path.read_bytes() for path in before} == before, "an input was changed"


def test_a_report_that_cannot_be_written_is_not_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A green gate whose report is lost exits with 5, a red one stays red."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    text = edited(row(), {"compiled.flops": 1})
    base, worse = write_run(tmp_path / "base.json", [text]), write_run(tmp_path / "worse.json", [row()])
    monkeypatch.setattr("results.regress.prepare", lambda paths, inputs: None)
    lost = "/dev/full cannot be written: No space left on device; nor can a temporary file: "
    assert assert_refused(f"regress exact {base} {base} --markdown=/dev/full", 5, lost).out.endswith("green: 1 same\n")
    assert ended(f"regress exact {base} {worse} --markdown=/dev/full").code == 1


def test_a_name_leads_out_of_no_folder(tmp_path: Path) -> None:
    """Figures stay inside --out whatever a preset is called, such as a path to another folder."""
    rows = [row(preset=EVIL), row("data", "data=2", preset=EVIL), row(preset=EVIL.replace("/", "_"))]
    path = write_run(tmp_path / "run.json", rows)
    out = tmp_path / "a" / "b" / "c" / "out"
    assert ended(f"plot {path} --out={out}").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "a"}
    assert {path.parent.parent for path in tmp_path.rglob("*.png")} == {out}
    assert len([path for path in out.iterdir() if path.is_dir()]) == 2, "what is called alike has folders apart"


def test_figures_are_beside_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default figures are written beside their run, whatever the working directory."""
    (tmp_path / "runs").mkdir()
    cases = [row(batch=batch) for batch in (8, 16)] + [row("data", "data=2", batch) for batch in (8, 16)]
    write_run(tmp_path / "runs" / "first.json", cases)
    monkeypatch.chdir(tmp_path)
    assert ended("plot runs/first.json").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert len(list((tmp_path / "runs" / "first-figures").glob("*.png"))) >= 5


LOTS = "schedule 1f1b --stages 40 --microbatches 200"


def test_a_broken_pipe_is_quiet() -> None:
    """A closed pipe, as of `| head`, prints no traceback and ends by SIGPIPE or with 141."""
    command = [sys.executable, "-m", "benchmarks", *LOTS.split()]
    with subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() in (141, -signal.SIGPIPE)  # which a shell calls 141


STARTS = {
    "module": "sys.argv = ['-m', *{command!r}]; runpy._run_module_as_main('benchmarks')",  # as `python -m` does
    "installed": "sys.argv = ['/usr/bin/meshmark', *{command!r}]; from benchmarks.cli.main import main; main()",
}
"""Python that starts a command as a user starts it."""
QUIET = {-signal.SIGINT, 130}


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("how", "command", "imported", "seconds", "statuses"),
    [
        *(("module", command, " benchmarks.cli\n", 0.0, QUIET) for command in ("show fsdp", LOTS)),
        *(
            ("module", command, " benchmarks.cli\n", seconds, {*QUIET, done})  # it may be done before
            for command, done in (("show", 0), ("plot none.json", 5))
            for seconds in (0.2, 0.6)
        ),
        ("installed", "plot none.json", "pandas", 0.0, {-signal.SIGINT}),
    ],
)
def test_ctrl_c_while_a_command_is_imported_is_quiet(
    how: str, command: str, imported: str, seconds: float, statuses: set[int]
) -> None:
    """Ctrl-C ends a command by SIGINT or with 130, without a traceback, from when `benchmarks.cli` is imported.

    It comes some seconds after a line about imports that has a text: a package's submodules have theirs before it.
    """
    code = f"import runpy, sys; {STARTS[how].format(command=command.split())}"
    started = [sys.executable, "-X", "importtime", "-c", code]
    with subprocess.Popen(started, cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr
        while imported not in process.stderr.readline():
            assert process.poll() is None
        threading.Timer(seconds, process.send_signal, [signal.SIGINT]).start()
        assert "Traceback" not in process.stderr.read()
        assert process.wait() in statuses
