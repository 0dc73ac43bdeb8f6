"""The figure of a sweep over routings: step time, memory and dropped choices against the imbalance of the experts."""

import pandas as pd
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
from results.figures.curves import is_counted
from results.figures.windows import swept_points
from results.records.rows import WORKLOAD

NAME = "time_and_memory_vs_imbalance"
SAME = [name for name in WORKLOAD if name != "forced"]
"""The columns in which the rows of a sweep are equal."""
PANELS = {"step_ms": "time of a step (ms)", "memory": "memory per device", "dropped": "choices dropped (%)"}


def imbalance_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest row of each strategy on its most devices, for each routing, with the load that was counted."""
    rows = rows[is_counted(rows) & rows["experts.largest_over_mean"].notna()]
    points = swept_points(rows, "forced")
    nothing = {f"{column}_{end}": float("nan") for column in ("memory", "dropped") for end in ("low", "high")}
    dropped = 100 * points["experts.dropped_fraction"]
    return points.assign(imbalance=points["experts.largest_over_mean"].round(3), dropped=dropped, **nothing)


def time_and_memory_vs_imbalance(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw the step time, the memory per device and what is dropped against the largest load of an expert.

    The load is that of the most chosen expert over the mean, in the worst layer. Each strategy is on its most devices.
    """
    points = imbalance_points(rows)
    divisor, unit = byte_unit(points["memory.total_bytes"].max())
    points = points.assign(memory=points["memory.total_bytes"] / divisor)
    figure, panels = canvas(rows, points, "Time and memory against the imbalance of experts", 3, one_unit=False)
    for axes, (column, label) in zip(panels, PANELS.items(), strict=True):
        strategy_lines(axes, points, "imbalance", column, look)
        doubling_axis(axes, points["imbalance"], "largest load over the mean")
        axes.set_xticks(ticks := sorted(points["imbalance"].unique()), [f"{tick:.2g}" for tick in ticks])
        top = max(points[column].max(), points[f"{column}_high"].max())
        axes.set(ylabel=f"{label} ({unit})" if column == "memory" else label, ylim=(0, 1.1 * top or 1))
    legend(figure, points, look)
    name_meshes(figure, rows, points)
    return figure
