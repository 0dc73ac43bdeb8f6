"""The laws of the memory figure: every case has its bar, its total and what the formula says."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from results.figures.canvas import look_of
from results.figures.curves import PARTS, case_labels, memory_by_case
from results.figures.drawing import FIGURES, MOST_BARS
from results.records.rows import load
from tests.results.synthetic import failed, row, sweep, write_run

TEMPORARIES = "temporaries (gradients, activations)"


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    """A run's rows at one global batch, of which one was infeasible and one was wrong."""
    wrong = row("tensor", "tensor=16", status="mismatch", matches_single=False)
    read = load([write_run(tmp_path / "run.json", [*sweep(), failed("infeasible", "pipeline", "pipeline=16"), wrong])])
    return read[read["global_batch_sequences"] == 16]


def bars_of(axes: Axes) -> list[list[tuple[float, float, float]]]:
    """Return for each part of a stacked chart the height, start and width of its bars."""
    parts = [part for part in axes.containers if isinstance(part, BarContainer)]
    return [[(bar.get_y(), bar.get_x(), bar.get_width()) for bar in part] for part in parts]


def test_memory_has_a_sorted_panel_for_each_number_of_devices(rows: pd.DataFrame) -> None:
    """A bar for each case, the largest on top, its parts end to end, its name beside and its total."""
    figure = FIGURES["memory_per_device"](rows, look_of(rows["strategy"].unique()))
    cases = memory_by_case(rows)
    assert [axes.get_ylabel() for axes in figure.axes] == [f"devices: {devices}" for devices in (1, 2, 4, 8)]
    for axes, devices in zip(figure.axes, (1, 2, 4, 8), strict=True):
        own = cases[cases["devices"] == devices]
        assert [label.get_text() for label in axes.get_yticklabels()] == case_labels(own)
        parts = np.array(bars_of(axes))
        assert (np.diff(parts[..., 0]) > 0).all()
        assert axes.yaxis_inverted()
        np.testing.assert_allclose(2**20 * parts[..., 2].T, own[list(PARTS)])
        np.testing.assert_allclose(parts[1:, :, 1], np.cumsum(parts[:-1, :, 2], axis=0), atol=1e-9)
        totals = [f"{size / 2**20:,.1f}" for size in own["memory.total_bytes"]]
        assert [text.get_text() for text in axes.texts] == totals
    assert figure.axes[-1].get_xlabel() == "memory per device (MiB)"


def test_a_tick_is_at_the_memory_by_formula(rows: pd.DataFrame) -> None:
    """Arguments and temporaries as predicted, on the bar of the case; where nothing is predicted there is none."""
    sizes = 2**20 * np.arange(1, len(rows) + 1)
    known = rows.assign(**{"predicted.argument_bytes": sizes, "predicted.temp_bytes": 2 * sizes})
    for axes, devices in zip(FIGURES["memory_per_device"](known, {}).axes, (1, 2, 4, 8), strict=True):
        cases = memory_by_case(known)
        (ticks,) = axes.lines
        expected = cases.loc[cases["devices"] == devices, "formula"] / 2**20
        assert np.asarray(ticks.get_xdata()).tolist() == expected.tolist()
        assert axes.get_xlim()[1] > expected.max()
    assert not FIGURES["memory_per_device"](rows, {}).axes[0].lines


def test_of_many_cases_the_largest_and_smallest_are_drawn(rows: pd.DataFrame) -> None:
    """Up to 30 bars of as many devices; of more cases half of them from each end, and it is said how many others."""
    one = rows[rows["strategy"] == "single"]

    def drawn(number: int) -> tuple[Figure, list[float]]:
        sizes = 2**20 * np.arange(1, number + 1)
        many = pd.concat([one] * number, ignore_index=True).assign(**{"memory.total_bytes": sizes})
        many = many.assign(**{f"memory.{part}_bytes": 0 for part in ("argument", "parameter", "optimizer")})
        many = many.assign(**{"memory.output_bytes": 0, "memory.alias_bytes": 0, "memory.temp_bytes": sizes})
        figure = FIGURES["memory_per_device"](many, look_of(["single"]))
        return figure, [width for _, _, width in bars_of(figure.axes[0])[list(PARTS).index(TEMPORARIES)]]

    assert drawn(2 * MOST_BARS)[1] == list(range(30, 0, -1))
    figure, widths = drawn(100)
    assert widths == [*range(100, 85, -1), *range(15, 0, -1)]
    assert "70 between the largest and the smallest have no bar" in figure.get_supxlabel()
