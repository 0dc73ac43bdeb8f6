"""What all figures share: a strategy's look, a title that says what was run, a caption that says what was left out."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.curves import counts, left_out

MARKERS = "osD^vPX<>ph*"  # as many as have no factor in common with the eleven colours: 132 looks
GREY = "0.45"

# The arguments of seaborn's functions that give each strategy its colour and its marker.
Look = dict[str, Any]


def look_of(strategies: Sequence[str]) -> Look:
    """Give each strategy a colour and a marker: safe for the colour-blind, and told apart without colour too."""
    colours = [*sns.color_palette("colorblind"), (0.2, 0.2, 0.2)]
    return {
        "hue": "strategy",
        "hue_order": list(strategies),
        "palette": {name: colours[i % len(colours)] for i, name in enumerate(strategies)},
        "style": "strategy",
        "style_order": list(strategies),
        "markers": {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(strategies)},
        "legend": False,
    }


def canvas(
    rows: pd.DataFrame, points: pd.DataFrame, heading: str, panels: int = 1, needs: str = ""
) -> tuple[Figure, list[Axes]]:
    """Open a figure, titled with what was run and captioned with what was left out.

    Args:
        rows: all rows the figure is about.
        points: those of them that it shows.
        heading: what the figure shows.
        panels: how many axes to lay out; with none the figure says that nothing has what it needs.
        needs: what rows that count must still have to be shown.
    """
    lines = math.ceil(max(panels, 1) / 3)
    columns = math.ceil(max(panels, 1) / lines)
    width, height = max(6, 3 * columns), max(4.5, 2.8 * lines)
    figure = Figure(figsize=(width + 3, height + 0.5), layout="constrained")
    grid = list(figure.subplots(lines, columns, sharey=True, squeeze=False).flat)
    for unused in grid[panels:]:
        unused.remove()
    if not panels:
        figure.text(0.5, 0.4, f"no row that counts has {needs}", ha="center")
    figure.suptitle(f"{heading}\n{what_was_run(rows)}", x=0.02, ha="left", fontsize="medium")
    figure.supxlabel(textwrap.fill(what_was_left_out(rows, points, needs), 110), fontsize="x-small", color=GREY)
    return figure, grid[:panels]


def what_was_run(rows: pd.DataFrame) -> str:
    """Say the workload and the devices of rows that share a figure."""
    rows = rows[counts(rows)]
    facts = rows.iloc[0]
    batches = ", ".join(f"{batch:.0f}" for batch in sorted(rows["global_batch_sequences"].unique()))
    return (
        f"{facts['preset']} ({facts['param_count'] / 1e6:,.1f}M parameters), "
        f"{batches} × {facts['sequence_tokens']:.0f} tokens, {facts['dtype']}, remat {facts['remat']}\n"
        f"{'virtual devices that share one machine' if facts['virtual_devices'] else facts['device_kind']}"
        f"{how_noisy(rows)}"
    )


def how_noisy(rows: pd.DataFrame) -> str:
    """Say so where a step differed too much from itself, and by how much; nothing of a quiet run."""
    noisy = rows[rows["noisy"].eq(True)]
    if noisy.empty:
        return ""
    low, high = noisy["canary_ratio_low"].min() - 1, noisy["canary_ratio_high"].max() - 1
    return f"; a noisy run: the same step timed twice differed by {low:+.0%} to {high:+.0%}"


def what_was_left_out(rows: pd.DataFrame, points: pd.DataFrame, needs: str) -> str:
    """Say how many rows a figure does not show, and why."""
    why = left_out(rows)
    if incomplete := int(counts(rows).sum()) - len(points):
        why[f"without {needs}"] = incomplete
    reasons = ": " + ", ".join(f"{count} {reason}" for reason, count in why.items()) if why else ""
    return f"{len(rows) - len(points)} of {len(rows)} rows left out{reasons}"


def legend(figure: Figure, points: pd.DataFrame, look: Look) -> None:
    """Name each strategy drawn, and each line with a label of its own."""
    handles = [
        Line2D([], [], color=look["palette"][name], marker=look["markers"][name], label=name)
        for name in look["hue_order"]
        if name in set(points["strategy"])
    ]
    if not points["best"].all():
        handles.append(Line2D([], [], color=GREY, marker="o", alpha=0.4, linestyle="", label="other meshes"))
    if points["tokens_per_second_low"].notna().any():
        handles.append(Line2D([], [], color=GREY, marker="|", linestyle="", markersize=10, label="95% interval"))
    labelled = {
        label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles=[*handles, *labelled.values()], loc="outside right center", frameon=False)


def strategy_lines(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Look) -> None:
    """Draw each strategy's points lightly, and a line through its best, with their intervals."""
    best = points[points["best"]]
    sns.scatterplot(points, x=x, y=y, ax=axes, alpha=0.4, **look)
    sns.lineplot(best, x=x, y=y, ax=axes, dashes=False, errorbar=None, markersize=8, **look)
    intervals(axes, best, x, y, look)


def intervals(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Look) -> None:
    """Draw the 95% interval of each point that has one, behind its marker."""
    bars = {"fmt": "none", "elinewidth": 1.2, "capsize": 4, "zorder": 1.5}
    for strategy, own in points.groupby("strategy", sort=False):
        ends = [own[y] - own[f"{y}_low"], own[f"{y}_high"] - own[y]]
        axes.errorbar(own[x], own[y], ends, ecolor=look["palette"][strategy], **bars)


def doubling_axis(axes: Axes, values: pd.Series, label: str) -> None:
    """Space x by doublings, as far as the values go, and write each that occurs plainly."""
    ticks = sorted(values.unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.set(xlabel=label, xlim=(ticks[0] / 1.2, ticks[-1] * 1.2))


def ideal_line(axes: Axes, points: pd.DataFrame, y: str) -> None:
    """Draw and name the ideal, where `single` was measured to tell it."""
    ideal = points.dropna(subset=y).sort_values("devices")
    name = "ideal: constant total work" if points["virtual_devices"].all() else "ideal: linear speed-up"
    axes.plot(ideal["devices"], ideal[y], color=GREY, linestyle="--", zorder=1, label=name)


def throughput_axis(axes: Axes, points: pd.DataFrame) -> None:
    """Draw throughput from zero; on real devices, where it should double with them, by doublings."""
    axes.set_ylabel("throughput (tokens/s)")
    if points["virtual_devices"].all():
        axes.set_ylim(0, 1.1 * np.nanmax(points[["tokens_per_second", "ideal_tokens_per_second"]]))
    else:
        axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")


def byte_unit(largest: float) -> tuple[int, str]:
    """Choose the unit in which the largest size reads well: its bytes, and its name."""
    return (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")
