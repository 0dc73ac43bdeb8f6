"""The figure of a sweep over attention windows."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results import load
from results.figures.tables import workloads
from results.figures.windows import sweeps
from results.words import workload
from tests.results.pictures import counted, drawn, names_of, points_of
from tests.results.synthetic import row, write_run

NAME = "time_and_memory_vs_window"
PLACES = (("single", "data=1"), ("fsdp", "fsdp=2"), ("fsdp", "fsdp=8"))


def windowed(strategy: str, mesh: str, window: int | None, **changes: Any) -> dict[str, Any]:
    """A row with an attention window."""
    facts = {"attention_window": window, "attention_stride": None, "attention_pattern": None, "attention_summary": None}
    made = row(strategy, mesh, **facts, **changes)
    return made | {"name": f"{made['name'][:-1]}-attention_window={window}]"} if window else made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two windows, the last of them dense."""
    rows = [windowed(*place, window) for window in (16, None) for place in PLACES]
    return write_run(tmp_path / "run.json", rows)


def test_each_window_is_a_workload(run: Path) -> None:
    """Rows with different windows are in different figures, and these name the window."""
    parts = dict(workloads(load([run])))
    assert [label.rpartition("-")[2] for label in parts] == ["attention_window=16", "none"]
    assert [", attention_window=16" in workload(part.iloc[0]) for part in parts.values()] == [True, False]


def test_a_sweep_has_each_window_on_most_devices(run: Path) -> None:
    """The figure has each strategy on its most devices, at each window; dense attention is at the whole sequence."""
    points = counted(points_of(load(run), NAME))
    assert set(points["mesh"]) == {"data=1", "fsdp=8"}
    assert sorted(points["window"].unique()) == [16, 128]
    time, memory = drawn(load(run), NAME).axes
    assert [label.get_text() for label in time.get_xticklabels()] == ["16", "dense"]
    assert (time.get_ylabel(), memory.get_ylabel()) == ("time of a step (ms)", "memory per device (MiB)")


def test_the_sweep_is_next_to_the_figures_of_each_window(run: Path) -> None:
    """Each window has a folder of figures. The sweep is next to them."""
    names = names_of(load(run))
    assert [name for name in names if "/" not in name] == [NAME]
    assert len({name.partition("/")[0] for name in names if "/" in name}) == 2


def test_one_window_is_no_sweep(tmp_path: Path) -> None:
    """Without a second window there is no such figure, and files of older versions are dense."""
    rows = load([write_run(tmp_path / "old.json", [row(*place) for place in PLACES])])
    assert not [*sweeps(rows, None)]
    assert set(rows["attention"]) == {""}
    assert isinstance(rows["attention_window"], pd.Series)
