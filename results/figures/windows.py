"""The figure of a sweep over attention windows: step time and memory against the window."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.figures.canvas import (
    Look,
    byte_unit,
    canvas,
    doubling_axis,
    legend,
    name_meshes,
    strategy_lines,
)
from results.figures.curves import is_counted, scaling
from results.records.rows import ATTENTION, WORKLOAD

NAME = "time_and_memory_vs_window"
SAME = [*(name for name in WORKLOAD if name != "attention"), *ATTENTION[1:]]
"""The columns in which the rows of a sweep are equal."""


def sweeps(
    rows: pd.DataFrame, varied: str = "attention", same: Sequence[str] = SAME
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield a label and the rows of each sweep: rows that count with several windows, otherwise of the same work.

    Or with several values of another column, and the same values of other columns.
    """
    for values, part in rows.groupby(list(same), sort=False, dropna=False):
        if part.loc[is_counted(part), varied].nunique() > 1:
            yield "-".join(text for text in map(str, values) if text not in ("nan", "None")), part


def window_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest row of each strategy on its most devices, for each window. Dense has the whole sequence."""
    points = swept_points(rows, "attention")
    windows = points["attention_window"].astype(float).fillna(points["sequence_tokens"])
    return points.assign(window=windows.clip(upper=points["sequence_tokens"]))


def swept_points(rows: pd.DataFrame, varied: str) -> pd.DataFrame:
    """Return the fastest row of each strategy on its most devices, for each value of the column that varies."""
    points = pd.concat([scaling(part) for _, part in rows[is_counted(rows)].groupby(varied)])
    points = points[points["best"] & points["memory.total_bytes"].notna()]
    points = points[points["devices"] == points.groupby("strategy")["devices"].transform("max")]
    milliseconds = {
        f"step_ms{end}": 1e3 * points[f"step_seconds_{end[1:] or 'median'}"] for end in ("", "_low", "_high")
    }
    return points.assign(**milliseconds)


def name_dense(axes: Axes, points: pd.DataFrame) -> None:
    """Name the tick of dense attention, whose window is the sequence."""
    ticks, dense = sorted(points["window"].unique()), points["sequence_tokens"].iloc[0]
    axes.set_xticks(ticks, ["dense" if tick == dense else f"{tick:.0f}" for tick in ticks])


def time_and_memory_vs_window(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw step time and memory per device against the attention window, for each strategy on its most devices."""
    points = window_points(rows)
    divisor, unit = byte_unit(points["memory.total_bytes"].max())
    memory = points["memory.total_bytes"] / divisor
    points = points.assign(memory=memory, memory_low=float("nan"), memory_high=float("nan"))
    figure, panels = canvas(rows, points, "Time and memory against the attention window", 2, one_unit=False)
    for axes, column, label in zip(
        panels, ("step_ms", "memory"), ("time of a step (ms)", f"memory per device ({unit})"), strict=True
    ):
        strategy_lines(axes, points, "window", column, look)
        doubling_axis(axes, points["window"], "attention window (tokens)")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set(ylabel=label, ylim=(0, 1.1 * np.nanmax(points[[column, f"{column}_high"]])))
        name_dense(axes, points)
    legend(figure, points, look)
    name_meshes(figure, rows, points)
    return figure
