"""Files are written before anything is printed: stdout may be on a full disk, or a pipe whose reader has ended."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.cli.commands import COMMANDS
from benchmarks.cli.main import prepared, resolved
from benchmarks.cli.outputs import Unwritable, write_then_print
from benchmarks.cli.statuses import UNWRITTEN
from tests.commands import assert_refused
from tests.processes import ROOT

SEARCH = "search --preset=nano --topology=h100:1x2 --batch-size=8 --strategy=data"
TABLE = {
    f"{SEARCH} --json=x.json --trace=x.trace": ("x.json", "x.trace"),
    "predict runs.csv --out=x.csv": ("x.csv",),
    "fit runs.csv --machine=a100_fsdp --only=matmul_efficiency --out=x.json": ("x.json",),
    "show fsdp --mesh=fsdp=2 --json=x.json --png=x.svg": ("x.json", "x.svg"),
    "schedule 1f1b --stages=2 --microbatches=2 --json=x.json": ("x.json",),
    "plot found.json --out=x.svg": ("x.svg",),
    "page run.json --out=x.html": ("x.html",),
    "merge run.json other.json --out=x.json": ("x.json",),
    "regress exact run.json run.json --markdown=x.md --junit=x.xml --action-json=a.json --bencher-json=b.json": (
        *("x.md", "x.xml", "a.json", "b.json"),
    ),
    "regress baseline run.json --out=baselines": ("baselines",),
}
"""Commands, and the files that they write."""
ELSEWHERE = {
    "export": "prints what it has no --out for",
    "regress paired": "reports as `regress exact` does, after minutes",
    "calibrate": "takes minutes; it writes by `write_then_print`",
    "compile": "a trace takes a compiler for absent devices; it writes by `write_then_print`",
    "train": "test_progress.py: it prints while it trains",
    "measure": "is pytest, which writes its file last; a test below measures without a reader",
}
"""Commands with files to write that are not in the table, and why."""
WRITES = ("--json", "--png", "--out", "--trace", "--markdown", "--to-huggingface", "--trace-dir")


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, _: str) -> int:
        """Write nothing."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("command", TABLE)
def test_files_are_there_though_nothing_can_be_printed(
    command: str, valid_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command whose stdout is full has written all of its files."""
    monkeypatch.chdir(shutil.copytree(valid_files, tmp_path / "here"))
    name, arguments = resolved(command.split())
    run = prepared(name, arguments)
    monkeypatch.setattr("sys.stdout", Full())
    with pytest.raises(OSError, match="No space left on device"):
        run()
    for file in TABLE[command]:
        assert Path(file).stat().st_size > 0


@pytest.mark.parametrize("command", TABLE)
def test_files_are_whole_or_as_they_were(
    command: str, valid_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that cannot replace its files leaves earlier ones as they were, and says where its results are."""
    monkeypatch.chdir(shutil.copytree(valid_files, tmp_path / "here"))
    files = [Path(file, "jax-0.10.2.json") if file == "baselines" else Path(file) for file in TABLE[command]]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("an earlier result")
    before = sorted(Path().rglob("*"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    said = assert_refused(command, 5, "No space left on device; the result is in").err
    drawn = {Path("x.svg")} if command.startswith("show") else set()  # by another process, which can replace files
    assert {path.read_text() for path in {*files} - drawn} == {"an earlier result"}
    assert sorted(Path().rglob("*")) == before
    kept = [Path(path) for path in re.findall(r"the result is in ([^\s;]+)", said)]
    assert kept[0].name == files[0].name
    assert {path.name for path in kept} <= {path.name for path in files}
    # A gate tries its first file before it judges anything, with an empty one.
    assert all(path.read_text() for path in kept) == (not command.startswith("regress exact"))
    assert all(json.loads(path.read_text()) for path in kept if path.suffix == ".json")


def test_every_command_that_writes_is_in_the_table() -> None:
    """Each of them is tried, or says why it is not."""
    writing = {name for name, command in COMMANDS.items() if {*WRITES} & {one.name for one in command.all_options()}}
    assert writing - {resolved(command.split())[0] for command in TABLE} == {*ELSEWHERE}


def test_a_file_that_cannot_be_written_keeps_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other files are written, and the report is printed; the error says where the file is, as on a full disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = {Path("/dev/full"): "one", tmp_path / "x": "two"}
    with pytest.raises(Unwritable, match=r"/dev/full cannot be written: .*; the result is in") as refused:
        write_then_print(files, "report", named=True)
    (kept,) = tmp_path.glob("meshmark-*/full")
    assert kept.read_text() == "one"
    assert str(refused.value).endswith(f"the result is in {kept}")
    assert (tmp_path / "x").read_text() == "two"
    assert capsys.readouterr().out == f"report\nwrote {tmp_path / 'x'}\n"


def test_a_document_that_cannot_be_written_keeps_no_picture_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` draws and prints all the same, and then says where the document is."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = assert_refused(
        f"show fsdp --mesh=fsdp=2 --json=/dev/full --png={tmp_path / 'x.svg'}", 5, "the result is in"
    )
    assert "fsdp" in found.out
    assert (tmp_path / "x.svg").stat().st_size > 0


@pytest.mark.parametrize(
    "command",
    [
        "show fsdp --mesh=fsdp=2 --json=x.svg --png=x.svg",
        "schedule 1f1b --stages=2 --microbatches=2 --json=x.svg --png=./x.svg",
        f"{SEARCH} --json=x.svg --trace=x.svg",
    ],
)
def test_two_outputs_are_two_files(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two outputs of one path are refused before one overwrites the other."""
    monkeypatch.chdir(tmp_path)
    assert_refused(command, 5, "x.svg would overwrite the output of --json; name another file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reader", ["full disk", "none"])
def test_a_run_whose_output_nobody_reads_has_its_report(tmp_path: Path, reader: str) -> None:
    """`meshmark measure` goes on where it cannot print, writes its report, and says so at the end."""
    path = tmp_path / "run.json"
    sizes = "--model=layers=1,embed=16,heads=2,sequence=16 --batch-size=4 --strategy=data --devices=2 --compile-only"
    measure = [sys.executable, "-m", "benchmarks", "measure", *sizes.split(), f"--benchmark-json={path}"]
    if reader == "none":
        end, begin = os.pipe()
        os.close(end)
    else:
        begin = os.open("/dev/full", os.O_WRONLY)
    ended = subprocess.run(measure, cwd=ROOT, stdout=begin, stderr=subprocess.PIPE, text=True, check=False)
    os.close(begin)
    assert [row["extra_info"]["strategy"] for row in json.loads(path.read_text())["untimed"]] == ["data"]
    assert ended.stderr.splitlines()[-1].startswith("meshmark: the output could not be printed: ")
    assert ended.returncode == UNWRITTEN
