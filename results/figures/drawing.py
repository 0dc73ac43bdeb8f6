"""The figures: each draws one curve of the rows of one workload; all but throughput against batch, at one batch."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from results.figures.canvas import (
    GREY,
    Look,
    byte_unit,
    canvas,
    doubling_axis,
    ideal_line,
    intervals,
    legend,
    strategy_lines,
    throughput_axis,
)
from results.figures.curves import PARTS, TIMES, attributed, frontier, memory_parts, scaling

PART_COLOURS = dict(zip(PARTS, sns.color_palette("viridis", len(PARTS)), strict=True))
TIME_COLOURS = dict(zip(TIMES, sns.color_palette("colorblind", len(TIMES)), strict=True))


def throughput_vs_devices(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw tokens per second against devices, and the ideal."""
    points = scaling(rows)
    figure, (axes,) = canvas(rows, points, "Throughput against devices")
    strategy_lines(axes, points, "devices", "tokens_per_second", look)
    ideal_line(axes, points, "ideal_tokens_per_second")
    doubling_axis(axes, points["devices"], "devices")
    throughput_axis(axes, points)
    legend(figure, points, look)
    return figure


def parallel_efficiency(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw throughput over the ideal, against devices."""
    points = scaling(rows).dropna(subset="efficiency")
    panels = min(1, len(points))
    figure, grid = canvas(rows, points, "Parallel efficiency against devices", panels, needs="`single` at its batch")
    for axes in grid:
        strategy_lines(axes, points, "devices", "efficiency", look)
        ideal_line(axes, points.assign(ideal_efficiency=1.0), "ideal_efficiency")
        doubling_axis(axes, points["devices"], "devices")
        axes.set(ylabel="throughput / ideal throughput", ylim=(0, 1.1 * points["efficiency"].max()))
        axes.yaxis.set_major_formatter("{x:.0%}")
    legend(figure, points, look)
    return figure


def memory_vs_devices(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw what a device holds against devices, a panel a strategy."""
    points = scaling(rows).dropna(subset="memory.total_bytes")
    parts = memory_parts(points[points["best"]])
    divisor, unit = byte_unit(points["memory.total_bytes"].max())
    strategies = [name for name in look["hue_order"] if name in set(parts["strategy"])]
    heading = "Memory per device against devices (a strategy's fastest mesh)"
    figure, grid = canvas(rows, points, heading, len(strategies), needs="memory sizes")
    for axes, strategy in zip(grid, strategies, strict=True):
        sizes = parts[parts["strategy"] == strategy].pivot(index="devices", columns="part", values="bytes") / divisor
        sizes = sizes.reindex(index=sorted(points["devices"].unique()), columns=list(PARTS))
        sizes.plot.bar(stacked=True, ax=axes, color=PART_COLOURS, legend=False, rot=0, width=0.8, lw=0)
        axes.set_title(strategy, color=look["palette"][strategy], fontweight="bold")
        axes.grid(visible=False, axis="x")
        top = 1.1 * points["memory.total_bytes"].max() / divisor
        axes.set(xlabel="devices", ylabel=f"memory per device ({unit})", ylim=(0, top))
    handles = [Patch(color=PART_COLOURS[part], label=part) for part in reversed(PARTS)]
    figure.legend(handles=handles, loc="outside right center", title="held by a device", frameon=False)
    return figure


def throughput_vs_batch(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw tokens per second against the global batch, a panel a number of devices."""
    points = scaling(rows)
    panels = by_devices(points)
    figure, grid = canvas(rows, points, "Throughput against global batch", len(panels))
    for axes, (title, part) in zip(grid, panels.items(), strict=True):
        axes.set_title(title)
        strategy_lines(axes, part, "global_batch_sequences", "tokens_per_second", look)
        doubling_axis(axes, points["global_batch_sequences"], "global batch (sequences)")
        throughput_axis(axes, points)
    legend(figure, points, look)
    return figure


def throughput_vs_memory(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw tokens per second against memory per device, a panel a number of devices, and the frontier no row beats."""
    points = scaling(rows).dropna(subset="memory.total_bytes")
    divisor, unit = byte_unit(points["memory.total_bytes"].max())
    points = points.assign(memory=points["memory.total_bytes"] / divisor)
    panels = by_devices(points)
    figure, grid = canvas(rows, points, "Throughput against memory per device", len(panels), needs="memory sizes")
    for axes, (title, part) in zip(grid, panels.items(), strict=True):
        axes.set_title(title)
        alpha = np.where(part["best"], 1.0, 0.4)
        sns.scatterplot(part, x="memory", y="tokens_per_second", ax=axes, s=70, alpha=alpha, **look)
        intervals(axes, part[part["best"]], "memory", "tokens_per_second", look)
        edge = frontier(part[part["strategy"] != "single"])
        steps = {"color": GREY, "linestyle": ":", "drawstyle": "steps-post", "zorder": 1, "label": "frontier"}
        axes.plot(edge["memory"], edge["tokens_per_second"], **steps)
        axes.set(xlabel=f"memory per device ({unit})", xlim=(0, 1.1 * points["memory"].max()))
        throughput_axis(axes, points)
    legend(figure, points, look)
    return figure


def where_time_goes(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw the parts of each step's time, a bar a row, and the time of the whole step across it."""
    points = attributed(rows)
    figure, (axes,) = canvas(rows, points, "Where the time of a step goes", needs="its time attributed")
    figure.set_figheight(max(4.5, 2 + 0.3 * len(points)))
    names = points["strategy"] + " " + points["name"].str.extract(r"-(.*)\]", expand=False)
    milliseconds = 1e3 * points[list(TIMES.values())].set_axis(list(TIMES), axis="columns").set_axis(names)
    milliseconds.plot.barh(stacked=True, ax=axes, color=list(TIME_COLOURS.values()), legend=False, width=0.7, lw=0)
    whole = {"color": "black", "marker": "|", "markersize": 14, "linestyle": "", "label": "the step, measured"}
    (measured,) = axes.plot(1e3 * points["step_seconds_median"], range(len(points)), **whole)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="time of a step (ms)", ylabel="")
    handles = [Patch(color=colour, label=part) for part, colour in TIME_COLOURS.items()]
    figure.legend(handles=[*handles, measured], loc="outside right center", frameon=False)
    return figure


def by_devices(points: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split points by number of devices, under a title each; `single` is in every part, to compare with."""
    single = points["strategy"] == "single"
    several = sorted(points.loc[~single, "devices"].unique()) or sorted(points["devices"].unique())
    return {f"devices: {devices:.0f}": points[(points["devices"] == devices) | single] for devices in several}


FIGURES: dict[str, Callable[[pd.DataFrame, Look], Figure]] = {
    draw.__name__: draw
    for draw in (
        throughput_vs_devices,
        parallel_efficiency,
        memory_vs_devices,
        throughput_vs_batch,
        throughput_vs_memory,
        where_time_goes,
    )
}
