"""The folder of a training run: one run at a time, tried before the first step, and watched until the last."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.outputs import Unwritable
from benchmarks.training.log import Log, held
from benchmarks.training.plan import CHECKPOINTS, LOG
from strategies.checkpoints import zarr_arrays
from strategies.checkpoints.info import positions
from tests.benchmarks.training.small_run import OFTEN, SMALL
from tests.commands import command
from tests.strategies.sampling import nightly

main = command("train")

pytestmark = pytest.mark.usefixtures("_built_once")
SHORT = (*SMALL, *OFTEN, "--steps=6", "--decay-steps=6", "--warmup-steps=1")


@pytest.mark.parametrize("out", ["a/../b/", *nightly("~/b", "link/b")])
def test_any_path_names_a_folder(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--out may have `..`, `~`, links and a slash at its end: the checkpoints are where the log is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(".")
    assert main([*SMALL, "--steps=1", "--warmup-steps=0", f"--out={out}"]) == 0
    assert positions(tmp_path / "b" / CHECKPOINTS) == [1]
    assert (tmp_path / "b" / LOG).exists()


def test_two_runs_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run in the folder of one that is alive ends with 5, and changes nothing there."""
    with held(tmp_path / "run"), pytest.raises(SystemExit, match="5"):
        main([*SHORT, f"--out={tmp_path / 'run'}"])
    assert re.search("another run is writing into .*run; wait for it, or name another --out", capsys.readouterr().err)
    assert not list((tmp_path / "run").iterdir())
    with held(tmp_path / "run"):
        pass  # the lock is free again


def test_checkpoints_are_tried_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder into which no array can be written ends the run with 5 before it trains; nothing is left there."""

    def refuse(folder: Path) -> None:
        raise ValueError("Invalid file path")

    monkeypatch.setattr("benchmarks.training.log.require_writable", refuse)
    with pytest.raises(SystemExit, match="5"):
        main([*SHORT, f"--out={tmp_path / 'run'}"])
    assert re.search("checkpoints cannot be written to .*: Invalid file path; name another", capsys.readouterr().err)
    assert not (tmp_path / "run" / LOG).exists()


def test_a_save_that_fails_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training goes on after a save that failed, and says so; the later one is saved, and the exit status is 5."""
    written = zarr_arrays.write

    def fail(folder: Path, *others: Any) -> None:
        if folder.name.startswith("4."):
            raise OSError("the disk is full")
        written(folder, *others)

    monkeypatch.setattr(zarr_arrays, "write", fail)
    assert main([*SHORT, f"--out={tmp_path / 'run'}"]) == 5
    said = capsys.readouterr().err
    assert re.search("4 cannot be written: the disk is full; training goes on, and saves again", said)
    assert re.search("4 cannot be written: the disk is full; the checkpoints that are there: 6$", said)
    assert positions(tmp_path / "run" / CHECKPOINTS) == [6]


def test_a_folder_that_is_removed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose --out is removed says so at its next line of the log, and ends with 5."""
    written = Log.write

    def write(self: Log, kind: str, **facts: Any) -> None:
        if kind == "step" and facts["step"] == 2:
            shutil.rmtree(tmp_path / "run")
        written(self, kind, **facts)

    monkeypatch.setattr(Log, "write", write)
    assert main([*SHORT, f"--out={tmp_path / 'run'}"]) == 5
    assert "log.jsonl cannot be read or written: it was removed or replaced" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    """A path that is a file is no folder of a run."""
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match="file cannot be written to"), held(tmp_path / "file"):
        pass
