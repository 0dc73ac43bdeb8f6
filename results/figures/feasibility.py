"""The figure of what a search has found: the density of candidates, their frontier, and the compiled ones by mesh."""

import math
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.canvas import GREY, Look, byte_unit, caption, look_of, parameters
from results.figures.curves import frontier
from results.figures.labels import label_points
from results.records.reading import RecordError

BYTES, SPEED = "needed_bytes", "tokens_per_second_per_device"
SHOWN = 1.5
"""Candidates that need more than this many times a device's memory are counted in the caption, and not drawn."""
CELLS = (60, 24)
"""Columns and rows of the hexagonal cells in which candidates are counted."""
LABELLED = 12
"""Compiled candidates whose meshes are written beside them; more are numbered."""
LISTED = 24
"""Lines of a column of meshes."""
PALE = sns.blend_palette(["0.92", "0.55"], as_cmap=True)
"""Light enough for what is drawn above the density."""


def beaten_by_none(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the candidates on the frontier of those that fit, by formula, smallest first."""
    names = {f"formula.{BYTES}": "memory.total_bytes", f"formula.{SPEED}": "tokens_per_second"}
    best = frontier(rows[rows["status"] == "fits"].rename(columns=names))
    return best.rename(columns={new: old for old, new in names.items()})


def figure_of(facts: dict[str, Any], rows: pd.DataFrame) -> Figure:
    """Draw memory against the upper bound on throughput.

    Args:
        facts: what all candidates share, as `results.frontier.read` returns it.
        rows: the candidates, a row each.

    Raises:
        RecordError: no candidate is feasible.
    """
    divisor, unit = byte_unit(facts["capacity_bytes"])
    sizes = [f"{source}.{BYTES}" for source in ("formula", "compiled")]
    rows = rows.assign(**{size: rows[size] / divisor for size in sizes})  # from here on in this unit
    capacity = facts["capacity_bytes"] / divisor
    feasible = rows.dropna(subset=[f"formula.{BYTES}", f"formula.{SPEED}"])
    if feasible.empty:
        raise RecordError("nothing to draw, no candidate is feasible; each row's `reason` says why")
    drawn = feasible[feasible[f"formula.{BYTES}"] <= SHOWN * capacity]
    best, compiled = beaten_by_none(rows), compiled_points(feasible)
    look = look_of([*best["strategy"], *compiled["strategy"]])
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=f"memory per device ({unit})", ylabel="upper bound on throughput (tokens/s per device)")
    axes.set_xlim(0, max([SHOWN * capacity, *1.05 * compiled["x"]]))
    axes.set_ylim(0, 1.2 * max([*drawn[f"formula.{SPEED}"], *compiled["y"]], default=1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    density(axes, drawn)
    axes.axvline(capacity, color="black", linestyle="--", label="a device's memory")
    frontier_line(axes, best, look)
    arrows(axes, compiled, look)
    figure.suptitle(f"What fits, and how fast it can be\n{what_was_searched(facts)}", x=0.02, ha="left", size="medium")
    caption(figure, what_is_drawn(rows, len(drawn)))
    legend(axes, look)
    name_meshes(axes, compiled, best, look)
    return figure


def compiled_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the candidates whose compiled program has a size, with `x` and `y` where they are drawn.

    Where the compiler gave up, there is no bound on its throughput, and `y` is the bound by formula.
    """
    rows = rows.dropna(subset=f"compiled.{BYTES}")
    return rows.assign(x=rows[f"compiled.{BYTES}"], y=rows[f"compiled.{SPEED}"].fillna(rows[f"formula.{SPEED}"]))


def density(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw how many candidates are in each cell, by formula, the darker the more, with a scale beside the axes."""
    cells = axes.hexbin(
        rows[f"formula.{BYTES}"],
        rows[f"formula.{SPEED}"],
        gridsize=CELLS,
        extent=(*axes.get_xlim(), *axes.get_ylim()),
        mincnt=1,
        cmap=PALE,
        linewidths=0.2,
        zorder=1,
    )
    most = max([2, *np.asarray(cells.get_array())])
    cells.set_norm(LogNorm(1, most))
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if tick <= most]
    bar = axes.figure.colorbar(cells, cax=axes.inset_axes((1.05, 0.02, 0.03, 0.35)), ticks=ticks, format="{x:,.0f}")
    bar.minorticks_off()
    bar.set_label("candidates in a cell", size="small")


def frontier_line(axes: Axes, best: pd.DataFrame, look: Look) -> None:
    """Draw the frontier as steps, with a small marker of its strategy at each candidate on it."""
    x, y = best[f"formula.{BYTES}"], best[f"formula.{SPEED}"]
    axes.step(x, y, where="post", color="black", linewidth=1.2, label="frontier, by formula")
    for name in dict.fromkeys(best["strategy"]):
        own = best["strategy"] == name
        axes.scatter(x[own], y[own], color=look["palette"][name], marker=look["markers"][name], s=18, zorder=3)


def arrows(axes: Axes, compiled: pd.DataFrame, look: Look) -> None:
    """Draw each compiled candidate, and an arrow that leads there from where formulas put it."""
    for row in compiled.to_dict("records"):
        begin, end = (row[f"formula.{BYTES}"], row[f"formula.{SPEED}"]), (row["x"], row["y"])
        colour, marker = (look[kind][row["strategy"]] for kind in ("palette", "markers"))
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1, "alpha": 0.7}, zorder=4)
        axes.plot(*end, marker, color=colour, markeredgecolor="black", markersize=9, zorder=5)


def legend(axes: Axes, look: Look) -> None:
    """Name the strategies that are drawn, the lines, and what an arrow means."""
    lines, _ = axes.get_legend_handles_labels()
    style = {"color": GREY, "marker": "o", "markeredgecolor": "black", "markersize": 9}
    arrow = Line2D([], [], **style, label="formula → compiled")
    handles = [*(marker_of(name, look, name) for name in look["hue_order"]), *lines, arrow]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def marker_of(strategy: str, look: Look, label: str) -> Line2D:
    """Return the entry of a legend that shows a strategy's marker."""
    colour, marker = look["palette"][strategy], look["markers"][strategy]
    return Line2D([], [], color=colour, marker=marker, linestyle="", label=label)


def name_meshes(axes: Axes, compiled: pd.DataFrame, best: pd.DataFrame, look: Look) -> None:
    """Write the mesh of each compiled candidate near it; of more than `LABELLED` a number, and the meshes in a list."""
    texts = list(compiled["mesh"])
    if len(texts) > LABELLED:
        list_meshes(axes, compiled, look)
        texts = [str(number) for number in range(1, len(texts) + 1)]
    x = np.linspace(best[f"formula.{BYTES}"].min(), best[f"formula.{BYTES}"].max(), 100 * (len(best) > 0))
    y = best[f"formula.{SPEED}"].to_numpy()[best[f"formula.{BYTES}"].searchsorted(x, side="right") - 1]
    points, line = (list(zip(*pair, strict=True)) for pair in ((compiled["x"], compiled["y"]), (x, y)))
    if unplaced := label_points(axes, points, texts, line):
        text = f"no room near {len(unplaced)} of the compiled points"
        axes.text(0.01, 0.01, text, transform=axes.transAxes, size="x-small")


def list_meshes(axes: Axes, compiled: pd.DataFrame, look: Look) -> None:
    """List the meshes of the compiled candidates with their numbers, in columns beside the legend."""
    handles = [
        marker_of(strategy, look, f"{number}  {mesh}")
        for number, (strategy, mesh) in enumerate(zip(compiled["strategy"], compiled["mesh"], strict=True), start=1)
    ]
    figure, legend, columns = axes.get_figure(root=True), axes.get_legend(), math.ceil(len(handles) / LISTED)
    assert figure
    assert legend
    figure.set_figwidth(figure.get_figwidth() + 3 * columns)
    axes.add_artist(legend)  # the second one would replace it
    style = {"loc": "upper left", "bbox_to_anchor": (1.25, 1), "ncols": columns, "fontsize": "x-small"}
    axes.legend(handles=handles, title="compiled", frameon=False, **style)


def what_was_searched(facts: dict[str, Any]) -> str:
    """Name the workload and the devices in a line."""
    chip = "" if facts["topology"].startswith(facts["chip"]) else f" as {facts['chip']}"
    batch = f"{facts['global_batch_sequences']} sequences of {facts['sequence_tokens']} tokens"
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), {batch}, {facts['dtype']}, "
        f"on {facts['devices']} devices of {facts['topology']}{chip}"
    )


def what_is_drawn(rows: pd.DataFrame, drawn: int) -> str:
    """Say how many candidates are drawn, why the others are not, and what the bounds assume."""
    infeasible = int(rows["status"].eq("infeasible").sum())
    beyond = len(rows) - drawn - infeasible
    left_out = f"{infeasible} are infeasible, {beyond} need more than {SHOWN:g} times a device's memory"
    bounds = "Bounds are by the chip's published figures, with perfect overlap and no idle time but pipeline bubbles."
    return f"{drawn} of {len(rows)} candidates drawn: {left_out}. {bounds} Compiled steps are simulated."
