"""Output files of commands."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from matplotlib.backend_bases import FigureCanvasBase

from benchmarks.cli.outputs import PICTURES, Unwritable, locked, save, save_text
from benchmarks.run.journal import Journal
from benchmarks.training.log import held


@pytest.mark.parametrize("full", ["while it is written", "when it replaces the file"])
def test_a_file_is_whole_or_as_it_was(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way leaves an earlier file as it was, begins no new one, and is done again elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("an earlier result")
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if full == "when it replaces the file":
        monkeypatch.setattr(Path, "replace", Mock(side_effect=no_space))

    def write(to: Path) -> None:
        to.write_text("half, ")
        if full == "while it is written" and elsewhere not in to.parents:
            raise no_space
        to.write_text("half, and half")

    for path in (old, new):
        with pytest.raises(Unwritable, match="No space left on device; the result is in"):
            save(path, write)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.txt")} == {"old.txt": "an earlier result"}
    assert {path.name for path in tmp_path.iterdir()} == {"old.txt", "elsewhere"}
    assert [path.read_text() for path in elsewhere.rglob("*.txt")] == ["half, and half"] * 2


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EBADF])
def test_a_file_system_without_locks_keeps_nobody_out(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lustre and NFS may lack locks, which does not mean that another run writes: both kinds of run warn, in a line."""
    path = tmp_path / "x.journal.jsonl"
    Journal(path, {}, resume=False).close()
    with monkeypatch.context() as lacking:
        lacking.setattr("fcntl.flock", Mock(side_effect=OSError(code, os.strerror(code))))
        for _ in range(2):
            Journal(path, {}, resume=False).close()
            with held(tmp_path / "run"):
                pass
    warned = f"cannot be locked: {os.strerror(code)}; let no other run write there at the same time"
    assert capsys.readouterr().err.splitlines() == [f"{path} {warned}", f"{tmp_path / 'run'} {warned}"]
    with path.open() as file, path.open() as other:
        assert locked(file, path)
        assert not locked(other, path)


def test_a_link_stays_one(tmp_path: Path) -> None:
    """What it leads to is written."""
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    save_text(link, "text")
    assert link.is_symlink()
    assert file.read_text() == "text"


def test_what_is_in_dev_is_written_in_place(tmp_path: Path) -> None:
    """It may lead to a file into which a shell sends more than this: /dev/stdout, and /dev/fd/N of any number."""
    with (tmp_path / "output").open("w") as output:
        output.write("before, ")
        output.flush()
        inode = os.fstat(output.fileno()).st_ino
        save_text(Path(f"/dev/fd/{output.fileno()}"), "text")
    assert (tmp_path / "output").stat().st_ino == inode
    assert (tmp_path / "output").read_text() == "text"


def test_every_format_of_a_picture_can_be_drawn() -> None:
    """The suffixes that commands accept for a picture are formats of matplotlib, which commands do not import."""
    assert {*PICTURES} <= FigureCanvasBase.get_supported_filetypes().keys()
