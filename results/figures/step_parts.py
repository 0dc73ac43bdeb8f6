"""Where the time of a step goes: a bar for each row, and across it the measured time with its interval."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import Figure, Style, legend, opened
from results.figures.marks import stacked_bars
from results.figures.palette import PURE_BLACK, TIME_COLOURS
from results.figures.tables import TIMES, attributed, case_labels, one_batch


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw the parts of each step's time, in milliseconds."""
    figure, (axes,) = opened(style, size=(10.0, 1.8 + 0.26 * len(points)))
    parts = 1e3 * points[list(TIMES.values())].set_axis(list(TIMES), axis="columns")
    stacked_bars(axes, parts, TIME_COLOURS, case_labels(points))
    median, low, high = (points[name] for name in ("step_time", "step_time_low", "step_time_high"))
    ends = np.abs([median - low, high - median])
    across: dict[str, Any] = {"fmt": "|", "markersize": 14, "elinewidth": 0.9, "capsize": 2.5, "color": PURE_BLACK}
    axes.errorbar(median, range(len(points)), xerr=ends, label="measured, 95% interval", **across)
    axes.set(xlabel="time of a step (ms)", ylabel="")
    axes.set_xlim(min(0, axes.get_xlim()[0]), 1.04 * np.nanmax(np.concatenate([parts.clip(lower=0).sum(axis=1), high])))
    legend(figure, below=True)
    return figure


FIGURE = Figure("where_time_goes", "Where the time of a step goes", one_batch, attributed, draw)
