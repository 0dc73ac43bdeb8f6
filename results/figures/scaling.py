"""The figure of predicted throughput against devices, for strong and weak scaling, with what the best waits for."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.canvas import GREY, caption
from results.figures.palette import LIMIT_COLOURS
from results.records.reading import RecordError

PANELS = {"strong": "strong scaling", "weak": "weak scaling"}


def figure_of(facts: dict[str, Any], rows: pd.DataFrame) -> Figure:
    """Draw throughput, and below it the time of a step, against devices, a column for each scaling.

    Args:
        facts: what all points share, as `results.scaling.read` returns it.
        rows: the points, a row each.

    Raises:
        RecordError: nothing fits on any number of devices.
    """
    drawn = rows[rows["predicted_seconds"].notna()]
    if drawn.empty:
        raise RecordError("nothing to draw, no candidate fits on any number of devices")
    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.subplots(2, len(PANELS), sharex=True, sharey="row")
    for column, (scaling, name) in zip(grid.T, PANELS.items(), strict=True):
        part = drawn[drawn["scaling"] == scaling]
        for axes, quantity in zip(column, ("tokens_per_second", "predicted_seconds"), strict=True):
            axes.plot(part["devices"], part[quantity], color=GREY, linewidth=1, zorder=1)
            colours = part["limit"].map(LIMIT_COLOURS)
            axes.scatter(part["devices"], part[quantity], c=colours, s=60, edgecolor="black", linewidth=0.5, zorder=3)
            axes.set(xscale="log", yscale="log")
            axes.set_xscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:,g}")
        if not part.empty:
            ideal_line(column[0], part)
        column[0].set_title(f"{name}: {batches(part)}", size="medium")
        column[1].set_xticks(ticks := sorted(rows["devices"].unique()), [f"{tick:,}" for tick in ticks], rotation=45)
        column[1].set_xlabel("devices")
    grid[0, 0].set_ylabel("predicted throughput (tokens/s)")
    grid[1, 0].set_ylabel("predicted time of a step (s)")
    work = f"{facts['preset']}, {facts['sequence_tokens']} tokens in a sequence, {facts['dtype']}, on {facts['device']}"
    title = f"The best candidate on each number of devices, as predicted\n{work}"
    figure.suptitle(title, x=0.02, ha="left", size="medium")
    style = {"marker": "o", "markeredgecolor": "black", "linestyle": "", "markersize": 8}
    used = [name for name in LIMIT_COLOURS if name in set(drawn["limit"])]
    handles = [Line2D([], [], color=LIMIT_COLOURS[name], label=name, **style) for name in used]
    handles.append(Line2D([], [], color=GREY, linestyle="--", label="ideal: linear"))
    figure.legend(handles=handles, title="waits most for", loc="outside right center", frameon=False)
    caption(figure, what_is_drawn(facts, rows, len(drawn)))
    return figure


def ideal_line(axes: Any, part: pd.DataFrame) -> None:
    """Draw the throughput of the smallest number of devices, in proportion."""
    first = part.iloc[0]
    ideal = first["tokens_per_second"] / first["devices"] * part["devices"]
    axes.plot(part["devices"], ideal, color=GREY, linestyle="--", linewidth=1, zorder=1)


def batches(part: pd.DataFrame) -> str:
    """Say what the batch is: the same on all devices, or as many sequences for each."""
    if part["batch_size"].nunique() == 1:
        return f"{part['batch_size'].iloc[0]:,} sequences"
    each = part["batch_size"] / part["devices"]
    return " or ".join(f"{value:g}" for value in sorted(each.unique())) + " sequences a device"


def what_is_drawn(facts: dict[str, Any], rows: pd.DataFrame, drawn: int) -> str:
    """Say whose predictions these are, how far they are off, and where nothing fits."""
    known = f"Machine file {facts['machine']}, whose predictions are off by {facts['error']:.0%} on average."
    colour = "The colour is the resource without which a step would save the most time."
    return f"{known} {colour} Nothing fits at {len(rows) - drawn} of {len(rows)} points."
