"""`meshmark plot` draws a file by what it is, also one that `show` or `schedule` has written."""

from pathlib import Path

import pytest

from tests.commands import command
from tests.results.synthetic import row, write_run

plot = command("plot")


@pytest.mark.parametrize(
    ("written_by", "arguments"),
    [("schedule", ["gpipe", "--stages=2", "--microbatches=2"]), ("show", ["data", "--preset=nano"])],
)
def test_what_is_written_as_json_is_drawn(written_by: str, arguments: list[str], tmp_path: Path) -> None:
    """`--json FILE` writes what `plot FILE` draws, and a folder has pictures of the exchanges."""
    path = tmp_path / "printed.json"
    command(written_by)([*arguments, f"--json={path}"])
    assert plot([str(path)]) == 0
    assert (tmp_path / "printed.png").read_bytes().startswith(b"\x89PNG")
    if written_by == "show":
        assert plot([str(path), f"--out={tmp_path / 'folder'}"]) == 0
        assert [each.name for each in (tmp_path / "folder").iterdir()] == ["data.svg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run.json", "printed.json"], "run.json is of the kind run, and printed.json is not; plot them apart"),
        (["printed.json", "printed.json"], "a picture is of one schedule; plot the 2 files apart"),
        (["run.json", "--out=z.png"], "z.png is one picture, and there are 2 of these files (memory_per_device, where"),
        (["folder"], "folder is a folder, and files are drawn; name one, such as folder/log.jsonl"),
        (["run.json", "--between=1,2"], "--between is a part of a trace, and this is of the kind run; leave it out"),
        (
            ["printed.json", "--batch-size=8"],
            "--batch-size chooses among measured cases, and this is of the kind sched",
        ),
    ],
)
def test_what_has_no_effect_is_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Files of several kinds, several files of one picture, several pictures into one file, and other options."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "log.jsonl").touch()
    write_run(tmp_path / "run.json", [row()])
    command("schedule")(["gpipe", "--stages=2", "--microbatches=2", "--json=printed.json"])
    with pytest.raises(SystemExit, match="2"):
        plot(arguments)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "z.png").exists()
