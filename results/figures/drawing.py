"""The figures of runs that `meshmark plot` draws: each function draws one from the rows of one workload."""

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
from results.figures.curves import (
    TIMES,
    attributed,
    case_labels,
    frontier,
    memory_by_case,
    scaling,
    several_batches,
    utilization,
)
from results.figures.experts import measured_points, step_time_vs_tokens
from results.figures.palette import GREY, PART_COLOURS, PURE_BLACK, TIME_COLOURS

ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1.01, 1),
    "ncols": 3,
    "frameon": False,
    "fontsize": "small",
}
"""Where the legend of a chart of bars is: above the axes, which need the width."""
MOST_BARS = 15
"""Of each number of devices, the memory figure draws so many of the largest cases, and so many of the smallest."""


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
        highest = max(points["efficiency"].max(), points["efficiency_high"].max())
        axes.set(ylabel="throughput / ideal throughput (%)", ylim=(0, 1.1 * highest))
        axes.yaxis.set_major_formatter("{x:.0%}")
    legend(figure, points, look)
    return figure


def memory_per_device(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw what a device holds in every case, a panel for each number of devices and a bar for each case.

    `look` is not used: colours are parts.
    """
    cases, needs = memory_by_case(rows), "memory sizes"
    panels = {devices: cases[cases["devices"] == devices] for devices in sorted(cases["devices"].unique())}
    drawn = {
        devices: pd.concat([part.iloc[:MOST_BARS], part.iloc[MOST_BARS:][-MOST_BARS:]])
        for devices, part in panels.items()
    }
    bars = [len(part) for part in drawn.values()]
    figure, grid = canvas(rows, cases, "Memory per device of each case", len(panels), needs, bars=bars)
    for axes, (devices, part) in zip(grid, drawn.items(), strict=True):
        axes.yaxis.set_label_position("right")
        axes.set_ylabel(f"devices: {devices:.0f}", rotation=270, va="bottom", fontsize="small")
        memory_bars(axes, part, *byte_unit(cases["memory.total_bytes"].max()))
    if grid:
        grid[0].legend(**ABOVE)
        grid[-1].set_xlabel(f"memory per device ({byte_unit(cases['memory.total_bytes'].max())[1]})")
    if others := len(cases) - sum(bars):
        between = f"{others} between the largest and the smallest have no bar"
        caption(figure, f"{what_was_left_out(rows, cases, needs)}; {between}")
    return figure


def memory_bars(axes: Axes, cases: pd.DataFrame, divisor: int, unit: str) -> None:
    """Draw a stacked bar for each case, the largest on top, with its total at the end and a tick at its formula."""
    rows, ends = np.arange(len(cases)), np.zeros(len(cases))
    for part, colour in PART_COLOURS.items():
        widths = cases[part].to_numpy() / divisor
        axes.barh(rows, widths, left=ends, color=colour, height=0.75, linewidth=0, label=part)
        ends = ends + widths
    formula = (cases["formula"] / divisor).to_numpy(float)
    if np.isfinite(formula).any():
        style: dict[str, Any] = {"markersize": 11, "markeredgewidth": 2, "markeredgecolor": GREY, "linestyle": ""}
        axes.plot(formula, rows, "|", label="total by formula", **style)
    for row, (end, formula_end) in enumerate(zip(ends, np.nan_to_num(formula), strict=True)):
        place = max(end, formula_end), row
        axes.annotate(f"{end:,.1f}", place, (5, 0), textcoords="offset points", va="center", size="x-small")
    axes.set_yticks(rows, case_labels(cases), size="small")
    axes.grid(visible=False, axis="y")
    longest = max(axes.get_xlim()[1] / 1.15, *ends, *np.nan_to_num(formula)) if len(rows) else 1
    axes.set(xlim=(0, 1.15 * longest), ylim=(len(cases) - 0.4, -0.6))


def throughput_vs_batch(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw tokens per second against the global batch, for strategies that ran with several, by number of devices."""
    points = several_batches(rows)
    panels = by_devices(points)
    needs = "another global batch of its strategy and devices"
    figure, grid = canvas(rows, points, "Throughput against global batch", len(panels), needs)
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
        intervals(axes, part, "memory", "tokens_per_second", look)
        sns.scatterplot(part, x="memory", y="tokens_per_second", ax=axes, s=75, alpha=alpha, zorder=3, **look)
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
    style = {"fmt": "|", "markersize": 20, "ecolor": PURE_BLACK, "color": PURE_BLACK, "elinewidth": 0.9, "capsize": 2.5}
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
        step_time_vs_tokens,
    )
}
OF_ALL_BATCHES = {"throughput_vs_batch", "step_time_vs_tokens"}
"""The figures of all rows of a workload; the others are of one global batch."""


def figures_of(rows: pd.DataFrame, at_batch: pd.DataFrame) -> list[str]:
    """Name the figures that say something of these rows, and of those at the global batch that most figures show.

    On virtual devices parallel efficiency is throughput against devices in another unit, because more devices cannot be
    faster. Where time goes is known only of runs that were asked for it. Utilization is drawn of pipelines with several
    numbers of microbatches, throughput against the batch if a strategy ran with several, and step time against tokens
    on a device if `expert` and `fsdp` did. Where only `single` ran there are no devices and no strategies to compare.
    """
    pointless = set()
    if rows["strategy"].eq("single").all():
        pointless |= {"throughput_vs_devices", "parallel_efficiency", "throughput_vs_memory"}
    if rows["virtual_devices"].eq(True).all():
        pointless.add("parallel_efficiency")
    if attributed(at_batch).empty:
        pointless.add("where_time_goes")
    if utilization(at_batch).empty:
        pointless.add("utilization_vs_microbatches")
    if several_batches(rows).empty:
        pointless.add("throughput_vs_batch")
    if measured_points(rows).empty:
        pointless.add("step_time_vs_tokens")
    return [name for name in FIGURES if name not in pointless]
