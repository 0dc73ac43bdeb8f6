"""Rows in pytest-benchmark's report."""

from pathlib import Path

import pytest

from benchmarks.publish import NoStats, require_writable


def test_case_without_samples_has_no_times() -> None:
    """Every statistic of what was not timed is null: nothing is made up."""
    assert set(NoStats().as_dict().values()) == {None}
    assert "median" in NoStats().as_dict()
    assert not NoStats()


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
    for path in (tmp_path, tmp_path / "file" / "name.json"):
        with pytest.raises(pytest.UsageError, match=r"--benchmark-json=.* cannot be written: .*; name another"):
            require_writable(path)
