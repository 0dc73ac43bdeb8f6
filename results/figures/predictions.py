"""Figures of predictions: predicted against published seconds, and where the predicted time of the worst rows goes."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from results.figures.frame import PLAIN, Style, described, legend, opened
from results.figures.marks import stacked_bars
from results.figures.palette import GREY, PURE_BLACK, SPENT_COLOURS, STRATEGY_COLOURS, WHITE
from results.records.predictions import FIGURE_PARTS

NEAR = 0.1
"""Lines are drawn at this error, above and below zero."""
SPREADS = {
    "tensor and pipeline": (STRATEGY_COLOURS["three_d"], "v"),
    "tensor": (STRATEGY_COLOURS["tensor"], "s"),
    "pipeline": (STRATEGY_COLOURS["pipeline"], "D"),
    "data or fsdp": (STRATEGY_COLOURS["fsdp"], "o"),
}
"""Mesh axes over which a model is split -> colour and marker of its rows. Batches may be split as well."""
WORST = 4
"""Rows of each source of which the parts are drawn."""
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


def parts_figure(rows: pd.DataFrame, style: Style = PLAIN) -> Figure:
    """Draw where the predicted time goes in the worst rows of each source, as parts of the published time."""
    sources = [part for _, part in worst_first(rows).groupby("source", sort=False)]
    drawn = [part.head(WORST) for part in sources]
    size = (11, 1.2 + 0.26 * sum(len(part) + 2 for part in drawn))
    heights = [len(part) for part in drawn]
    figure, grid = opened(style, len(drawn), size, columns=1, sharey=False, height_ratios=heights)
    for axes, part in zip(grid, drawn, strict=True):
        shares = {name: part[f"part.{name}"] / part["measured_seconds"] for name in SPENT_COLOURS}
        stacked_bars(axes, pd.DataFrame(shares), SPENT_COLOURS, [label_of(row) for row in part.to_dict("records")])
        axes.axvline(1, color=PURE_BLACK, linewidth=1.5)
        name = textwrap.shorten(short(part["source"].iloc[0]), 100, placeholder=" ...")
        axes.set_title(name, size="small", loc="left", y=1)
    grid[-1].set_xlabel("predicted over published time of a step")
    handles: list[Artist] = [Patch(color=SPENT_COLOURS[name], label=name) for name in FIGURE_PARTS]
    handles.append(Line2D([], [], color=PURE_BLACK, label="published time"))
    legend(figure, handles, below=True)
    title = "Worst rows: layers x embed, sequences x tokens in the number of microbatches, mesh"
    return described(figure, style, [title], [])


def worst_first(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, the largest error first; sources in the order of the rows."""
    return rows.sort_values("error", key=lambda error: -error.abs(), kind="stable").sort_values(
        "source", key=lambda source: source.map({name: place for place, name in enumerate(rows["source"].unique())}),
        kind="stable",
    )  # fmt: skip


def label_of(row: dict) -> str:
    """Name a row: its model, batch, tokens of a sequence, microbatches and mesh."""
    work = f"{row['model']}, {row['batch_size']:.0f} x {row['sequence']:.0f}"
    return f"{work} in {row['microbatches']:.0f}, {row['mesh']}"
