"""The figure of predicted time against devices, for strong and weak scaling, with the bottleneck of the best."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.canvas import caption
from results.figures.palette import GREY, LIMIT_COLOURS, PURE_BLACK, WHITE, strategy_looks
from results.figures.pictures import plain_ticks
from results.figures.search import how_certain
from results.records.reading import RecordError

PANELS = {"strong": "strong scaling", "weak": "weak scaling"}


def figure_of(facts: dict[str, Any], rows: pd.DataFrame) -> Figure:
    """Draw the time of a step, and below it the utilization, against devices, a column for each scaling.

    Args:
        facts: what all points share, as `read_search` returns it.
        rows: the best candidate on each number of devices, or one that says why none fits.
    """
    drawn = rows[rows["status"] == "fits"]
    if drawn.empty:
        raise RecordError("nothing to draw, no candidate fits on any number of devices")
    drawn = drawn.assign(percent=100 * drawn["model_flops_utilization"].astype(float))
    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.subplots(2, len(PANELS), sharex=True, sharey="row")
    for (above, below), (scaling, name) in zip(grid.T, PANELS.items(), strict=True):
        part = drawn[drawn["scaling"] == scaling]
        points(above, part, "predicted_seconds")
        points(below, part, "percent")
        above.set_xscale("log", base=2)
        above.set(yscale="log", title=f"{name}: {batches(part)}" if len(part) else name)
        plain_ticks(above.yaxis)
        plain_ticks(below.xaxis)
        above.yaxis.set_major_formatter("{x:g}")
        below.set(ylim=(0, 1.1 * drawn["percent"].max()), xlabel="devices")
        below.set_xticks(ticks := sorted(rows["devices"].unique()), [f"{tick:,}" for tick in ticks], rotation=45)
        if len(part):
            ideal_line(above, part)
    grid[0, 0].set_ylabel("predicted time of a step (s)")
    grid[1, 0].set_ylabel("model FLOPs utilization (%)")
    work = f"{facts['preset']}, {facts['sequence_tokens']} tokens in a sequence, {facts['dtype']}"
    kind = facts["topology"].partition(":")[0]
    title = f"The best candidate on each number of devices, as predicted\n{work}, on {kind}"
    figure.suptitle(title, x=0.02, ha="left", size="medium")
    legend(figure, drawn)
    caption(figure, what_is_drawn(facts, rows, len(drawn)))
    return figure


def points(axes: Axes, part: pd.DataFrame, column: str) -> None:
    """Draw a column against devices: the colour is the bottleneck, the marker the strategy."""
    axes.plot(part["devices"], part[column], color=GREY, linewidth=1, zorder=1)
    looks = strategy_looks(part["strategy"])
    for row in part.to_dict("records"):
        marker, colour = looks[row["strategy"]].marker, LIMIT_COLOURS[row["limit"]]
        axes.scatter(
            row["devices"],
            row[column],
            s=60,
            marker=marker,
            color=colour,
            edgecolor=PURE_BLACK,
            linewidth=0.5,
            zorder=3,
        )


def ideal_line(axes: Axes, part: pd.DataFrame) -> None:
    """Draw the time of a step if each device kept the throughput that it has on the smallest number of devices."""
    work = part["global_batch_sequences"] / part["devices"]
    ideal = part["predicted_seconds"].iloc[0] * work / work.iloc[0]
    axes.plot(part["devices"], ideal, color=GREY, linestyle="--", linewidth=1, zorder=1)


def legend(figure: Figure, drawn: pd.DataFrame) -> None:
    """Name the bottlenecks, the strategies and the ideal."""
    looks = {
        f"bottleneck: {name}": (colour, "o") for name, colour in LIMIT_COLOURS.items() if name in set(drawn["limit"])
    }
    looks |= {name: (WHITE, look.marker) for name, look in strategy_looks(drawn["strategy"]).items()}
    handles = [
        Line2D([], [], color=colour, marker=marker, markeredgecolor=PURE_BLACK, linestyle="", markersize=8, label=name)
        for name, (colour, marker) in looks.items()
    ]
    handles.append(Line2D([], [], color=GREY, linestyle="--", label="ideal: as on the fewest devices"))
    figure.legend(handles=handles, loc="outside right center", frameon=False)


def batches(part: pd.DataFrame) -> str:
    """Say what the batch is: the same on all devices, or as many sequences for each."""
    if part["global_batch_sequences"].nunique() == 1:
        return f"{part['global_batch_sequences'].iloc[0]:,} sequences"
    sequences = part["global_batch_sequences"] / part["devices"]
    return " or ".join(f"{value:g}" for value in sorted(sequences.unique())) + " sequences a device"


def what_is_drawn(facts: dict[str, Any], rows: pd.DataFrame, drawn: int) -> str:
    """Say whose predictions these are, how far they are off, and where nothing fits."""
    colour = "The bottleneck is the resource that would save most of the step if it were infinitely fast."
    missing = f" Nothing fits at {len(rows) - drawn} of {len(rows)} points." if drawn < len(rows) else ""
    return f"{how_certain(facts)} {colour}{missing}"
