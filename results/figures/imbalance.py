"""Mixtures of experts: time, memory and dropped choices against the imbalance of the experts.

The imbalance is the load of the most chosen expert over the mean, in the worst layer.
"""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import Figure, Style
from results.figures.tables import leave_out
from results.figures.windows import against, on_most_devices, sweeps, words
from results.records.rows import WORKLOAD

SAME = [name for name in WORKLOAD if name != "forced"]
"""The columns in which the rows of a sweep are equal."""
PANELS = {"step_time": "time of a step (ms)", "memory": "memory per device", "dropped": "choices dropped (%)"}


def imbalance_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the points of each routing whose load was counted."""
    load = rows["experts.largest_over_mean"]
    rows = rows.assign(imbalance=load.round(3), dropped=100 * rows["experts.dropped_fraction"])
    return on_most_devices(leave_out(rows, load.isna(), "without the load of experts"))


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw a panel for each of `PANELS`."""
    figure = against(points, style, "imbalance", PANELS, "{:.2g}")
    for axes in figure.axes:
        axes.set_xlabel("largest load over the mean")
    return figure


HEADING = "Time and memory against the imbalance of experts"
SWEEPS = partial(sweeps, varied="forced", same=SAME)
FIGURE = Figure("time_and_memory_vs_imbalance", HEADING, SWEEPS, imbalance_points, draw, words, sweeps=True)
