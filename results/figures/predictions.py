"""The figure of predictions: predicted against published seconds, a panel for each source."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from results.figures.frame import PLAIN, Style, described, legend
from results.figures.palette import GREY, STRATEGY_COLOURS, WHITE

NEAR = 0.1
"""Lines are drawn at this error, above and below zero."""
SPREADS = {
    "tensor and pipeline": (STRATEGY_COLOURS["three_d"], "v"),
    "tensor": (STRATEGY_COLOURS["tensor"], "s"),
    "pipeline": (STRATEGY_COLOURS["pipeline"], "D"),
    "data or fsdp": (STRATEGY_COLOURS["fsdp"], "o"),
}
"""Mesh axes over which a model is split -> colour and marker of its rows. Batches may be split as well."""
COLUMNS = 5
"""Sources side by side."""


def predicted_figure(rows: pd.DataFrame, style: Style = PLAIN) -> Figure:
    """Draw predicted seconds, and below them the errors, against published seconds, two panels for each source."""
    sources = list(rows["source"].unique())
    columns, bands = min(COLUMNS, len(sources)), -(-len(sources) // COLUMNS)
    figure = Figure(figsize=style.size or (max(5, 3.3 * columns), 6.6 * bands), layout="constrained")
    grid = figure.subplots(2 * bands, columns, squeeze=False, height_ratios=(1.4, 1) * bands)
    pairs = [pair for band in range(bands) for pair in grid[2 * band : 2 * band + 2].T]
    for above, below in pairs[len(sources) :]:
        above.remove()
        below.remove()
    limit = 100 * max(0.15, 1.1 * rows["error"].abs().max())
    for place, (source, (above, below)) in enumerate(zip(sources, pairs, strict=False)):
        part = rows[rows["source"] == source]
        panel(above, part, "predicted_seconds")
        limits = np.array(above.get_xlim())
        for error in (-NEAR, 0.0, NEAR):
            line = {"color": GREY, "linewidth": 1, "linestyle": "--" if error else "-", "zorder": 1}
            above.plot(limits, limits * (1 + error), **line)
            below.axhline(100 * error, **line)
        above.set(yscale="log", ylim=limits)
        seconds_axis(above.yaxis)
        above.set_title("\n".join(textwrap.wrap(f"{short(source)}, {len(part)} runs", 40)), size="x-small", y=1)
        panel(below, part.assign(percent=100 * part["error"]), "percent")
        below.set(ylim=(-limit, limit), xlabel="published seconds of a step")
        if place % columns == 0:
            above.set_ylabel("predicted seconds of a step")
            below.set_ylabel("error of the prediction (%)")
    used = [name for name in SPREADS if name in set(rows.apply(spread_of, axis=1))]
    handles = [Line2D([], [], color=SPREADS[name][0], marker=SPREADS[name][1], ls="", label=name) for name in used]
    legend(figure, handles, title="the model is split over")
    heading = "Predicted against published seconds of a step"
    return described(figure, style, [heading], [f"Lines: no error, and {NEAR:.0%} more or less."])


def short(source: str) -> str:
    """A source without the beginning and the end that many addresses share."""
    return source.removeprefix("https://").removeprefix("github.com/").replace("/README.md", "")


def panel(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Draw a column against published seconds, rows by what splits the model."""
    kinds = rows.apply(spread_of, axis=1)
    for name, (colour, marker) in SPREADS.items():
        own = rows[kinds == name]
        axes.plot(own["measured_seconds"], own[column], marker, color=colour, ms=4, mew=0.3, mec=WHITE, alpha=0.8)
    seconds = rows[["measured_seconds", "predicted_seconds"]].to_numpy(float)
    axes.set(xscale="log", xlim=(seconds.min() / 1.3, seconds.max() * 1.3))
    seconds_axis(axes.xaxis)


def seconds_axis(axis: Axis) -> None:
    """Write seconds on a logarithmic axis as plain numbers: 1, 3, 10 and so on; of less than a decade a few others.

    The theme hides minor ticks, but laying them out takes as long as all else in the figure.
    """
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 3)) if high > 10 * low else MaxNLocator(4))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def spread_of(row: pd.Series) -> str:
    """Which of `SPREADS` a row is."""
    axes = [axis for axis in ("tensor", "pipeline") if row[axis] > 1]
    return " and ".join(axes) or "data or fsdp"
