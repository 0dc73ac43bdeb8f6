"""The laws of the memory figure: every case has its bar, its total and what the formula says."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from results import load
from results.figures.frame import caption_of
from results.figures.memory import MOST_BARS
from results.figures.tables import PARTS, case_labels
from tests.results.pictures import bars_of, counted, drawn, points_of
from tests.results.synthetic import failed, sweep, write_run

NAME = "memory_per_device"


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    """A run's rows; one was infeasible."""
    return load(write_run(tmp_path / "run.json", [*sweep([16]), failed("infeasible", "pipeline", "pipeline=16")]))


def test_memory_has_a_sorted_panel_for_each_number_of_devices(rows: pd.DataFrame) -> None:
    """A bar for each case, the largest on top, its parts end to end, its name and its total next to it."""
    figure, cases = drawn(rows, NAME), counted(points_of(rows, NAME))
    assert [axes.get_ylabel() for axes in figure.axes] == [f"{devices} dev." for devices in (1, 2, 4, 8)]
    for axes, (_, own) in zip(figure.axes, cases.groupby("devices"), strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == case_labels(own)
        assert axes.yaxis_inverted()
        ends = np.zeros(len(own))
        for part, bars in bars_of(axes).items():
            if own[part].all():
                np.testing.assert_allclose([start for _, start, _ in bars], ends, atol=1e-9)
                np.testing.assert_allclose([2**20 * width for *_, width in bars], own[part])
            ends = ends + own[part].to_numpy() / 2**20
        np.testing.assert_allclose(2**20 * ends, own["memory"])
        assert [text.get_text() for text in axes.texts] == [f"{size / 2**20:,.1f}" for size in own["memory"]]
    assert figure.axes[-1].get_xlabel() == "memory per device (MiB)"


def test_a_tick_is_at_the_memory_by_formula(rows: pd.DataFrame) -> None:
    """Arguments and temporaries as predicted, on the bar of the case; where nothing is predicted there is none."""
    sizes = 2**28 * np.arange(1, len(rows) + 1)
    known = rows.assign(**{"predicted.argument_bytes": sizes, "predicted.temp_bytes": 2 * sizes})
    cases = counted(points_of(known, NAME))
    for axes, (_, own) in zip(drawn(known, NAME).axes, cases.groupby("devices"), strict=True):
        (ticks,) = axes.lines
        assert np.asarray(ticks.get_xdata()).tolist() == (own["formula"] / 2**20).tolist()
        assert axes.get_xlim()[1] > own["formula"].max() / 2**20
    assert not drawn(rows, NAME).axes[0].lines


def test_of_many_cases_the_largest_and_smallest_are_drawn(rows: pd.DataFrame) -> None:
    """Up to 30 bars of the same devices; of more cases half of them from each end, and the others are counted."""
    one = rows[rows["strategy"] == "single"]
    sizes = 2**20 * np.arange(1, 101)
    parts = {f"memory.{part}_bytes": 0 for part in ("argument", "parameter", "optimizer", "output", "alias")}
    many = pd.concat([one] * 100, ignore_index=True).assign(memory=sizes, **parts, **{"memory.temp_bytes": sizes})
    (widths,) = ([width for *_, width in bars] for bars in bars_of(drawn(many, NAME).axes[0]).values())
    assert widths == [*range(100, 85, -1), *range(15, 0, -1)]
    assert f"70 between the {MOST_BARS} largest and the {MOST_BARS} smallest" in caption_of(drawn(many, NAME))
    few = drawn(many[: 2 * MOST_BARS], NAME)
    assert "not drawn" not in caption_of(few)
    assert len(few.axes[0].get_yticklabels()) == 2 * MOST_BARS
    assert {*PARTS} >= {*bars_of(few.axes[0])}
