"""Tests of a page's data: it is complete, compact, and equal to the record of each case."""

import json
from pathlib import Path

import pytest

from results import load
from results.figures.tables import PARTS
from results.records.documents import read_search as read
from results.webpage.data import run_data, search_data
from tests.results.synthetic import failed, row, sweep, write_run


def values(data: dict, name: str) -> list:
    """Return the values of a column for all rows. A constant column is stored as a single value."""
    column = data["columns"][name]
    return column if isinstance(column, list) else [column] * data["count"]


@pytest.fixture
def data(tmp_path: Path) -> dict:
    """Data of a run with a failed case."""
    rows = [*sweep(), failed("oom", "pipeline", "pipeline=16")]
    return run_data(load([write_run(tmp_path / "run.json", rows)]))


def test_facts_are_as_recorded(data: dict) -> None:
    """The page has every row and column of the record, with six digits, except the samples."""
    rows = [*sweep(), failed("oom", "pipeline", "pipeline=16")]
    for name in row()["extra_info"]:
        recorded = [each["extra_info"][name] for each in rows]
        numbers = [value for value in recorded if isinstance(value, float)]
        if numbers:
            kept = [value for value in values(data, name) if value is not None]
            assert kept == pytest.approx([value for value in recorded if value is not None], rel=1e-5)
        else:
            assert values(data, name) == recorded
    assert "samples" not in data["columns"]


def test_a_column_of_one_value_is_stored_once(data: dict) -> None:
    """A column with equal values is stored as a single value, which keeps large pages small."""
    assert data["columns"]["platform"] == "cpu"
    assert len(data["columns"]["mesh"]) == data["count"]


def test_intervals_and_parts_belong_to_their_rows(data: dict) -> None:
    """Intervals of throughput contain its value, parts of memory add up to the total, and a failed case has neither."""
    speeds = zip(*(values(data, f"page.throughput_{end}") for end in ("low", "high")), strict=True)
    middle = values(data, "tokens_per_second")
    assert all(low < speed < high for (low, high), speed in zip(speeds, middle, strict=True) if speed)
    names = [name if "." in name else f"page.{name}" for name in PARTS.values()]
    parts = list(zip(*(values(data, name) for name in names), strict=True))
    totals = values(data, "memory.total_bytes")
    assert [sum(each) for each in parts[:-1]] == totals[:-1]
    assert parts[-1] == (None,) * len(names)
    assert values(data, "page.counts") == [True] * (data["count"] - 1) + [False]
    assert values(data, "page.check")[-1] == "oom: made up"


def test_it_is_json_whatever_is_not_known(tmp_path: Path) -> None:
    """A missing number becomes null, because JSON has no NaN."""
    data = run_data(
        load([write_run(tmp_path / "run.json", [row(loss_first=None), row("data", "data=2", loss_first=1)])])
    )
    json.dumps(data, allow_nan=False)
    assert values(data, "loss_first") == [None, 1]


def test_candidates_have_their_times(found: Path) -> None:
    """The best of each strategy and set of mesh axes and the tried ones, each with the times that figures show."""
    facts, rows = read(found)
    data = search_data(facts, rows)
    assert data["count"] == 3
    assert values(data, "page.least_ms") == [1000, 1000, 1000]
    assert values(data, "page.predicted_ms") == [2000, 2500, 3000]
    assert values(data, "page.compiled_ms") == [2500, None, None]
    assert values(data, "page.measured_ms") == [None, None, 2750]
    assert set(values(data, "page.waits_for")) == {"matmuls"}
