"""Rows in pytest-benchmark's report."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.run.publish import UNTIMED, NoStats, atomic_report, move_untimed_rows, note_machine, require_writable


def test_case_without_samples_has_no_times() -> None:
    """Every statistic of what was not timed is null: nothing is made up."""
    assert set(NoStats().as_dict().values()) == {None}
    assert "median" in NoStats().as_dict()
    assert not NoStats()


def test_rows_without_samples_are_apart() -> None:
    """Each row that other programs read has numbers; no row is lost."""
    timed, untimed = {"name": "a", "stats": {"mean": 0.1}}, {"name": "b", "stats": NoStats().as_dict()}
    report = {"benchmarks": [untimed, timed]}
    move_untimed_rows(report)
    assert report == {"benchmarks": [timed], UNTIMED: [untimed]}


def test_folder_of_the_report_is_made(tmp_path: Path) -> None:
    """The report's folder need not exist; the report itself is not begun."""
    path = tmp_path / "results" / "runs" / "name.json"
    require_writable(path)
    assert path.parent.is_dir()
    assert not path.exists()


def test_earlier_report_is_left_alone(tmp_path: Path) -> None:
    """Trying whether a report can be written does not harm the one that is there."""
    path = tmp_path / "name.json"
    path.write_text("{}")
    require_writable(path)
    assert path.read_text() == "{}"


def test_unwritable_report_is_refused(tmp_path: Path) -> None:
    """A report that cannot be written is refused before the sweep, with the system's reason."""
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "name.json", Path("/proc/name.json"), Path("/proc/folder/name.json")):
        with pytest.raises(pytest.UsageError, match=r"--benchmark-json: .* cannot be written: .*; name another"):
            require_writable(path)
    with pytest.raises(pytest.UsageError, match="--benchmark-json=/dev/null is a device or a pipe; name a file"):
        require_writable(Path("/dev/null"))


def test_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that holds no report is found before the sweep, and the message says how much to free."""
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**20))
    with pytest.raises(pytest.UsageError, match=r"has 1\.0 MiB left on its disk; free 16 MiB, or name another"):
        require_writable(tmp_path / "name.json")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_report_is_whole_or_not_there(tmp_path: Path, error: BaseException | None) -> None:
    """Whatever stops its writing in the middle, there is the report that was there before, or the new one."""
    report = tmp_path / "name.json"
    report.write_text("an earlier report")
    session = SimpleNamespace(json=report)
    config: Any = SimpleNamespace(_benchmarksession=session, option=SimpleNamespace(benchmark_json=report))

    def write() -> None:
        with atomic_report(config), session.json.open("w") as file:
            file.write("half, ")
            file.flush()
            assert report.read_text() == "an earlier report"
            if error:
                raise error
            file.write("and half")

    if error:
        with pytest.raises(type(error)):
            write()
    else:
        write()
    assert report.read_text() == ("an earlier report" if error else "half, and half")
    assert list(tmp_path.iterdir()) == [report]


def test_a_run_of_another_machine_is_compared_and_said() -> None:
    """The facts that decide the speed and differ are named; measured rates, which always differ, are none of them."""
    here = {"fingerprint": "a", "cpu": "new", "matmul_flops_per_second": 1.0}
    for there, said in (
        ({"fingerprint": "a", "cpu": "new", "matmul_flops_per_second": 2.0}, []),
        ({"fingerprint": "b", "cpu": "old", "matmul_flops_per_second": 2.0}, ["; these differ: cpu"]),
    ):
        lines: list[str] = []
        compared = {"machine_info": there}
        note_machine(here, compared, lines.append)
        assert len(lines) == len(said)
        assert all(line.endswith(end) for line, end in zip(lines, said, strict=True))
        assert compared["machine_info"] == here  # so pytest-benchmark finds no difference
