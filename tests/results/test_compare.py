"""`meshmark compare`, `merge` and `export`: stored runs side by side, several launches as one run, and other forms."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from results.compare import compare_runs
from results.records.launches import Change
from results.records.reading import read_run, records_of
from results.records.rows import load
from tests.commands import command
from tests.results.synthetic import edited, failed, row, write_run


def timed(mesh: str, seconds: float, **facts: Any) -> dict[str, Any]:
    """A row of fsdp with a step time, known to 3%."""
    times = {"step_seconds_median": seconds, "step_seconds_low": 0.97 * seconds, "step_seconds_high": 1.03 * seconds}
    timed = edited(row("fsdp", mesh), times | {"tokens_per_second": 2048 / seconds} | facts)
    return timed | {"stats": {"data": [seconds] * 6}}


def merged(folder: Path, name: str, *seconds: float, **facts: Any) -> Path:
    """A file of this many launches."""
    runs = [write_run(folder / f"{name}{i}.json", [timed("fsdp=8", each, **facts)]) for i, each in enumerate(seconds)]
    command("merge")([*map(str, runs), "--out", str(folder / f"{name}.json")])
    return folder / f"{name}.json"


def word(base: Path, head: Path) -> str:
    """The verdict on the only case."""
    return compare_runs(base, head)[0].findings[0].word


def test_three_launches_a_side_settle_a_change(tmp_path: Path) -> None:
    """By an interval over launches: their blocks differ by nothing, and it is as wide as the launches differ."""
    base = merged(tmp_path, "base", 1.00, 1.01, 0.99)
    (finding,) = compare_runs(base, merged(tmp_path, "slower", 1.10, 1.11, 1.09))[0].findings
    assert finding.word == "slower"
    assert finding.interval is not None
    low, high = finding.interval
    assert finding.ratio == pytest.approx(1.1, rel=1e-3)
    assert 1.07 < low < 1.08 < 1.12 < high < 1.13  # Welch's t for three and three of these
    assert word(base, merged(tmp_path, "faster", 0.90, 0.91, 0.89)) == "faster"
    assert word(base, merged(tmp_path, "same", 1.005, 1.001, 0.995)) == "same"
    assert word(base, merged(tmp_path, "loud", 1.3, 0.8, 1.2)) == "inconclusive"


def test_the_interval_is_that_of_welch() -> None:
    """As of scipy's own test of two samples with unequal variances."""
    stats = pytest.importorskip("scipy.stats")
    ours, theirs = [0.1, 0.3, 0.25, 0.2], [0.05, 0.06, 0.09]
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    change = Change.unpaired(ours, theirs)
    assert (change.low, change.high) == pytest.approx((expected.low, expected.high))


def test_one_launch_shows_large_changes_alone(tmp_path: Path) -> None:
    """Another launch of the same program may differ: a small change, or none, is inconclusive."""
    base = write_run(tmp_path / "base.json", [timed("fsdp=8", 1.0)])
    for seconds, expected in ((1.0, "inconclusive"), (1.2, "inconclusive"), (1.5, "slower"), (0.6, "faster")):
        assert word(base, write_run(tmp_path / "head.json", [timed("fsdp=8", seconds)])) == expected


def test_cases_that_are_not_in_both_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What vanished, what is new, what failed: the exit code is 0, for it is no gate."""
    base = write_run(tmp_path / "a.json", [timed("fsdp=2", 1.0), timed("fsdp=4", 1.0), timed("fsdp=8", 1.0)])
    head = [timed("fsdp=2", 1.0), failed("oom", "fsdp", "fsdp=4"), row("tensor", "tensor=8")]
    command("compare")([str(base), str(write_run(tmp_path / "b.json", head))])
    lines = capsys.readouterr().out.splitlines()
    said = {line.split("-", 2)[1].split("-b")[0]: line for line in lines if line.startswith("test_step")}
    assert "inconclusive" in said["fsdp=2"]
    assert "worse" in said["fsdp=4"]
    assert "oom: made up" in said["fsdp=4"]
    assert "vanished" in said["fsdp=8"]
    assert "new" in said["tensor=8"]


def test_counters_that_differ_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the exact gate judges them."""
    base = write_run(tmp_path / "a.json", [timed("fsdp=8", 1.0)])
    head = write_run(tmp_path / "b.json", [timed("fsdp=8", 1.0, **{"compiled.flops": 3 * 10**9})])
    command("compare")([str(base), str(head)])
    assert "worse  compiled.flops  2,000,000,000 -> 3,000,000,000 FLOP  1.500x" in capsys.readouterr().out
    command("compare")([str(base), str(base)])
    assert "the exact counters of the compiled programs are equal" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["markdown", "csv"])
def test_a_comparison_has_other_forms(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same row."""
    a, b = (write_run(tmp_path / f"{name}.json", [timed("fsdp=8", 1.0)]) for name in "ab")
    command("compare")([str(a), str(b), "--format", form])
    said = capsys.readouterr().out
    assert ("| 1,000.00 ms | 1,000.00 ms |" if form == "markdown" else '"1,000.00 ms","1,000.00 ms",') in said


def test_launches_are_one_record_with_an_interval_over_them(tmp_path: Path) -> None:
    """Its samples are the medians of launches; what is no time stays as it is, and the table has one row."""
    path = merged(tmp_path, "run", 1.00, 1.02, 0.98)
    (record,) = records_of(path, read_run(path), {})
    assert record["launches"] == 3
    assert record["samples"] == (1.00, 1.02, 0.98)
    assert record["step_seconds_median"] == pytest.approx(math.prod((1.00, 1.02, 0.98)) ** (1 / 3))
    assert record["tokens_per_second"] == pytest.approx(2048 / record["step_seconds_median"])
    assert record["step_seconds_low"] < 0.96 < 1.04 < record["step_seconds_high"]  # blocks alone: 0.97 to 1.03
    assert record["memory.total_bytes"] == row("fsdp", "fsdp=8")["extra_info"]["memory.total_bytes"]
    assert len(load([path])) == 1
    rows = json.loads(path.read_text())["benchmarks"]
    assert [(each["launch"], each["group"]) for each in rows] == [(i, rows[0]["name"]) for i in (1, 2, 3)]


def test_merged_runs_are_merged_again(tmp_path: Path) -> None:
    """Launches are counted on."""
    two, other = merged(tmp_path, "two", 1.0, 1.1), write_run(tmp_path / "three.json", [timed("fsdp=8", 1.2)])
    command("merge")([str(two), str(other), "--out", str(tmp_path / "all.json")])
    document = json.loads((tmp_path / "all.json").read_text())
    assert [each["launch"] for each in document["benchmarks"]] == [1, 2, 3]
    assert [Path(each["file"]).name for each in document["launches"]] == ["two0.json", "two1.json", "three.json"]


def test_a_case_that_failed_in_a_launch_has_failed(tmp_path: Path) -> None:
    """A number of the others would hide it."""
    good = write_run(tmp_path / "good.json", [timed("fsdp=8", 1.0)])
    bad = write_run(tmp_path / "bad.json", [failed("oom", "fsdp", "fsdp=8")])
    command("merge")([str(good), str(bad), "--out", str(tmp_path / "both.json")])
    (record,) = records_of(tmp_path / "both.json", read_run(tmp_path / "both.json"), {})
    assert (record["status"], record["launches"], record["samples"]) == ("oom", 2, ())


def test_a_flag_of_launches_is_that_of_all(tmp_path: Path) -> None:
    """A check that failed in one launch has failed; a run is noisy if one launch was; what one lacks is unknown."""
    each = [
        {"matches_single": True, "noisy": False, "predicted.sent_bytes": None},
        {"matches_single": False, "noisy": True, "predicted.sent_bytes": 3},
    ]
    for launches in (each, each[::-1]):
        runs = [
            write_run(tmp_path / f"{i}.json", [timed("fsdp=8", 1 + i, **facts)]) for i, facts in enumerate(launches)
        ]
        command("merge")([*map(str, runs), "--out", str(tmp_path / "merged.json")])
        path = tmp_path / "merged.json"
        (record,) = records_of(path, read_run(path), [*each[0]])
        assert (record["matches_single"], record["noisy"], record["predicted.sent_bytes"]) == (False, True, None)


def test_csv_has_every_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As stored, unrounded; what is not known is empty."""
    run = write_run(tmp_path / "run.json", [row("fsdp", "fsdp=8"), failed("oom", "tensor", "tensor=8")])
    command("export")([str(run), "--format", "csv"])
    measured, oom = csv.DictReader(io.StringIO(capsys.readouterr().out))
    for name, value in row("fsdp", "fsdp=8")["extra_info"].items():
        assert measured[name] == ("" if value is None else str(value))
    assert (oom["status"], oom["tokens_per_second"], oom["launches"]) == ("oom", "", "1")


def test_markdown_is_short_and_columns_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a case; a column that is not there is refused with those like it."""
    run = write_run(tmp_path / "run.json", [timed("fsdp=8", 0.5), failed("oom", "tensor", "tensor=8")])
    command("export")([str(run), "--format", "markdown", "--out", str(tmp_path / "run.md")])
    _, _, measured, oom = (tmp_path / "run.md").read_text().splitlines()
    assert measured.startswith("| fsdp | fsdp=8 | 16 | 500.00 ms | 485.00 to 515.00 | 4,096 |")
    assert oom.endswith("| oom: made up |")
    command("export")([str(run), "--format", "markdown", "--columns", "mesh,devices"])
    assert capsys.readouterr().out == "| mesh | devices |\n|---|---|\n| fsdp=8 | 8 |\n| tensor=8 | 8 |\n"
    with pytest.raises(SystemExit, match="2"):
        command("export")([str(run), "--format", "csv", "--columns", "meshs"])
    assert "no column is called 'meshs'; there are mesh" in capsys.readouterr().err
