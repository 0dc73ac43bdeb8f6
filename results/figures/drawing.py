"""The figures of `results.plot`: each function draws one from the rows of one workload."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from results.figures.canvas import (
    Look,
    byte_unit,
    canvas,
    caption,
    doubling_axis,
    ideal_line,
    intervals,
    legend,
    strategy_lines,
    throughput_axis,
    what_was_left_out,
)
from results.figures.curves import TIMES, attributed, case_labels, frontier, memory_by_case, scaling, utilization
from results.figures.palette import GREY, PART_COLOURS, TIME_COLOURS

ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1.01, 1),
    "ncols": 3,
    "frameon": False,
    "fontsize": "small",
}
"""Where the legend of a chart of bars is: above the axes, which need the width."""
MOST_BARS = 60
"""Of more cases than that, the memory figure draws the half of this number that is largest, and as many smallest."""


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
        axes.set(ylabel="throughput / ideal throughput (%)", ylim=(0, 1.1 * points["efficiency"].max()))
        axes.yaxis.set_major_formatter("{x:.0%}")
    legend(figure, points, look)
    return figure


def memory_per_device(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw what a device holds in every case, a bar each, the largest first. `look` is not used: colours are parts."""
    cases = memory_by_case(rows)
    needs = "memory sizes"
    figure, grid = canvas(rows, cases, "Memory per device of each case", min(1, len(cases)), needs)
    for axes in grid:
        drawn = memory_bars(axes, cases)
        figure.set_figheight(max(4.5, 2.3 + 0.21 * drawn))
        if others := len(cases) - drawn:
            text = f"{what_was_left_out(rows, cases, needs)}; {others} between the largest and the smallest have no bar"
            caption(figure, text)
    return figure


def memory_bars(axes: Axes, cases: pd.DataFrame) -> int:
    """Draw a stacked bar for each case, with its total at the end, and return the number of bars.

    Of more than `MOST_BARS` cases only the largest and the smallest are drawn. A line between them says how many others
    there are, and of which sizes.
    """
    divisor, unit = byte_unit(cases["memory.total_bytes"].max())
    half = MOST_BARS // 2
    others = cases.iloc[half:-half] if len(cases) > MOST_BARS else cases.iloc[:0]
    drawn = cases.drop(others.index)
    rows = np.arange(len(drawn)) + ((np.arange(len(drawn)) >= half) & (len(others) > 0))
    if len(others):
        sizes = others["memory.total_bytes"] / divisor
        text = f"  … {len(others)} more cases of {sizes.max():,.1f} to {sizes.min():,.1f} {unit} …"
        axes.text(0, half, text, va="center", size="small", style="italic")
    ends = np.zeros(len(drawn))
    for part, colour in PART_COLOURS.items():
        widths = drawn[part].to_numpy() / divisor
        axes.barh(rows, widths, left=ends, color=colour, height=0.75, linewidth=0, label=part)
        ends = ends + widths
    for row, end in zip(rows, ends, strict=True):
        axes.annotate(f"{end:,.1f}", (end, row), (3, 0), textcoords="offset points", va="center", size="x-small")
    axes.set_yticks(rows, case_labels(drawn), size="small")
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=f"memory per device ({unit})", xlim=(0, 1.15 * ends.max()), ylim=(rows[-1] + 0.7, -0.7))
    axes.legend(**ABOVE)
    return len(drawn)


def throughput_vs_batch(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw tokens per second against the global batch, in a panel for each number of devices."""
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
    """Draw tokens per second against memory per device and their frontier, in a panel for each number of devices."""
    points = scaling(rows).dropna(subset="memory.total_bytes")
    divisor, unit = byte_unit(points["memory.total_bytes"].max())
    points = points.assign(memory=points["memory.total_bytes"] / divisor)
    panels = by_devices(points)
    figure, grid = canvas(rows, points, "Throughput against memory per device", len(panels), needs="memory sizes")
    for axes, (title, part) in zip(grid, panels.items(), strict=True):
        axes.set_title(title)
        alpha = np.where(part["best"], 1.0, 0.4)
        sns.scatterplot(part, x="memory", y="tokens_per_second", ax=axes, s=55, alpha=alpha, **look)
        intervals(axes, part, "memory", "tokens_per_second")
        edge = frontier(part[part["strategy"] != "single"])
        steps = {"color": GREY, "linestyle": ":", "drawstyle": "steps-post", "zorder": 1, "label": "frontier"}
        axes.plot(edge["memory"], edge["tokens_per_second"], **steps)
        axes.set(xlabel=f"memory per device ({unit})", xlim=(0, 1.1 * points["memory"].max()))
        throughput_axis(axes, points)
    legend(figure, points, look, lines=False)
    return figure


def where_time_goes(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw the parts of each step's time, a bar for each row, and across it the measured time with its interval.

    `look` is not used: colours are parts.
    """
    points = attributed(rows)
    figure, (axes,) = canvas(rows, points, "Where the time of a step goes", needs="its time attributed")
    figure.set_figheight(max(4.5, 2.5 + 0.3 * len(points)))
    milliseconds = 1e3 * points[list(TIMES.values())].set_axis(list(TIMES), axis="columns").set_axis(
        case_labels(points)
    )
    milliseconds.plot.barh(stacked=True, ax=axes, color=list(TIME_COLOURS.values()), legend=False, width=0.7, lw=0)
    median, low, high = (1e3 * points[f"step_seconds_{end}"] for end in ("median", "low", "high"))
    style = {"fmt": "|", "markersize": 20, "ecolor": "black", "color": "black", "elinewidth": 0.9, "capsize": 2.5}
    measured = axes.errorbar(median, range(len(points)), xerr=[median - low, high - median], **style)
    measured.set_label("the step as measured, 95% interval")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="time of a step (ms)", ylabel="")
    handles = [Patch(color=colour, label=part) for part, colour in TIME_COLOURS.items()]
    axes.legend(handles=[*handles, measured], **ABOVE)
    return figure


def utilization_vs_microbatches(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw how much of the time stages of a pipeline work, by formula and as measured, in a panel for each pipeline."""
    points = utilization(rows)
    panels = {name: points[points["pipeline"] == name] for name in points["pipeline"].unique()}
    needs = "stages and another number of microbatches to compare with"
    figure, grid = canvas(rows, points, "Utilization of pipeline stages against microbatches", len(panels), needs)
    for axes, (title, part) in zip(grid, panels.items(), strict=True):
        colour = look["palette"][part["strategy"].iloc[0]]
        doubling_axis(axes, points["microbatches"], "microbatches")
        axes.plot(part["microbatches"], part["formula"], color=GREY, label="by formula: 1 - bubble")
        lockstep: dict[str, Any] = {"color": GREY, "linestyle": "--", "label": "by formula, ticks in lockstep"}
        axes.plot(part["microbatches"], part["lockstep"], **lockstep)
        if part["measured"].notna().any():
            axes.plot(part["microbatches"], part["measured"], "o", color=colour, label="measured")
        axes.set_title(title, fontsize="small")
        axes.set(ylabel="utilization", ylim=(0, 1.05))
        axes.yaxis.set_major_formatter("{x:.0%}")
    labelled = {label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels()[:2], strict=True)}
    figure.legend(labelled.values(), labelled, loc="outside right center", frameon=False)
    return figure


def by_devices(points: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split points by number of devices, each part under its title. Each part has `single`, to compare with."""
    single = points["strategy"] == "single"
    several = sorted(points.loc[~single, "devices"].unique()) or sorted(points["devices"].unique())
    return {f"devices: {devices:.0f}": points[(points["devices"] == devices) | single] for devices in several}


FIGURES: dict[str, Callable[[pd.DataFrame, Look], Figure]] = {
    draw.__name__: draw
    for draw in (
        throughput_vs_devices,
        parallel_efficiency,
        memory_per_device,
        throughput_vs_batch,
        throughput_vs_memory,
        where_time_goes,
        utilization_vs_microbatches,
    )
}
OF_ALL_BATCHES = {"memory_per_device", "throughput_vs_batch"}
"""The figures of all rows of a workload; the others are of one global batch."""


def figures_of(rows: pd.DataFrame) -> list[str]:
    """Name the figures that say something of these rows.

    On virtual devices parallel efficiency is throughput against devices in another unit, because more devices
    cannot be faster.
    Where time goes is known only of runs that were asked for it, and utilization is drawn of pipelines with several
    numbers of microbatches.
    """
    pointless = set()
    if rows["virtual_devices"].eq(True).all():
        pointless.add("parallel_efficiency")
    if attributed(rows).empty:
        pointless.add("where_time_goes")
    if utilization(rows).empty:
        pointless.add("utilization_vs_microbatches")
    return [name for name in FIGURES if name not in pointless]
