"""What all figures share: looks, a title that says what was run, a caption that says which rows are not drawn, axes."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from results.figures.curves import is_counted, left_out
from results.figures.palette import BAND, GREY, strategy_looks

SIDE_BY_SIDE = 0.6
"""How much of the space between two ticks the strategies take that stand side by side at a tick."""

# The arguments with which seaborn draws each strategy in its colour and with its marker.
Look = dict[str, Any]


def look_of(strategies: Iterable[str]) -> Look:
    """Return the looks of strategies as arguments of seaborn's functions, in the order in which legends name them."""
    looks = strategy_looks(strategies)
    return {
        "hue": "strategy",
        "hue_order": list(looks),
        "palette": {name: look.colour for name, look in looks.items()},
        "style": "strategy",
        "style_order": list(looks),
        "markers": {name: look.marker for name, look in looks.items()},
        "legend": False,
    }


def canvas(
    rows: pd.DataFrame,
    points: pd.DataFrame,
    heading: str,
    panels: int = 1,
    needs: str = "",
    *,
    one_unit: bool = True,
    bars: Sequence[int] = (),
) -> tuple[Figure, list[Axes]]:
    """Open a figure with a title that says what was run and a caption that says how many rows are not drawn.

    Args:
        rows: all rows that the figure is about.
        points: those of them that it draws.
        heading: what the figure shows.
        panels: the number of axes. With 0 the figure says that no row has what it needs.
        needs: what rows may lack, for which they are not drawn.
        one_unit: whether all panels have the same vertical axis.
        bars: numbers of horizontal bars of panels that stand one below another, with the same horizontal axis.
    """
    lines = len(bars) or math.ceil(max(panels, 1) / 3)
    columns = math.ceil(max(panels, 1) / lines)
    width, height = max(7, 4 * columns), max(4.5, 2.8 * lines)
    if bars:
        height = max(3.0, 1.6 + 0.5 * lines + 0.24 * sum(bars))
    figure = Figure(figsize=(width + 3, height + 0.5), layout="constrained")
    ratios = [count + 0.6 for count in bars] or [1] * lines
    shared = not bars and one_unit
    grid = list(
        figure.subplots(lines, columns, squeeze=False, sharex=bool(bars), sharey=shared, height_ratios=ratios).flat
    )
    for unused in grid[panels:]:
        unused.remove()
    if not panels:
        figure.text(0.5, 0.4, f"no row has {needs}", ha="center")
    lines_of_title = [part for line in what_was_run(rows).splitlines() for part in wrapped(figure, line, 8.5)]
    figure.suptitle("\n".join([heading, *lines_of_title]), x=0.02, ha="left", fontsize="medium")
    caption(figure, what_was_left_out(rows, points, needs))
    return figure, grid[:panels]


def caption(figure: Figure, text: str) -> None:
    """Write a caption below a figure, in lines as long as it is wide."""
    figure.supxlabel("\n".join(wrapped(figure, text, 12)), fontsize="x-small", color=GREY)


def wrapped(figure: Figure, text: str, letters_per_inch: float) -> list[str]:
    """Break a text into lines that are as long as the figure is wide."""
    return textwrap.wrap(text, int(letters_per_inch * figure.get_figwidth()))


def what_was_run(rows: pd.DataFrame) -> str:
    """Name the workload and the devices of rows that share a figure."""
    rows = rows[is_counted(rows)]
    facts = rows.iloc[0]
    batches = " or ".join(f"{batch:.0f}" for batch in sorted(rows["global_batch_sequences"].unique()))
    kinds = [rows["attention"].unique(), rows["forced"].map(lambda routing: routing and f"routing={routing}").unique()]
    common = "".join(f", {values[0]}" for values in kinds if len(values) == 1 and values[0])
    precision = f"{facts['dtype']}, remat {facts['remat']}{common}"
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), "
        f"{batches} sequences of {facts['sequence_tokens']:.0f} tokens, {precision}\n"
        f"{'virtual devices that share one machine' if facts['virtual_devices'] else facts['device_kind']}"
        f"{how_noisy(rows)}"
    )


def parameters(count: float) -> str:
    """Say how many parameters a model has.

    >>> parameters(6_658_400_000), parameters(35_152)
    ('6,658.4M parameters', '35,152 parameters')
    """
    return f"{count / 1e6:,.1f}M parameters" if count >= 1e5 else f"{count:,.0f} parameters"


def how_noisy(rows: pd.DataFrame) -> str:
    """Say by how much the same step, timed twice, differed from itself; nothing if no row is marked as noisy."""
    noisy = rows[rows["noisy"].eq(True)]
    if noisy.empty:
        return ""
    low, high = noisy["canary_ratio_low"].min() - 1, noisy["canary_ratio_high"].max() - 1
    return f"; a noisy run: the same step timed twice differed by {low:+.0%} to {high:+.0%}"


def what_was_left_out(rows: pd.DataFrame, points: pd.DataFrame, needs: str) -> str:
    """Say how many rows a figure does not draw, and why."""
    why = left_out(rows)
    if incomplete := int(is_counted(rows).sum()) - len(points):
        why[f"without {needs}"] = incomplete
    reasons = ": " + ", ".join(f"{count} {reason}" for reason, count in why.items()) if why else ""
    return f"{len(rows) - len(points)} of {len(rows)} rows left out{reasons}"


def name_meshes(figure: Figure, rows: pd.DataFrame, points: pd.DataFrame) -> None:
    """Say below a figure on which mesh each strategy is that is drawn on its most devices, and which rows are not."""
    meshes = points.drop_duplicates("strategy")
    shown = ", ".join(
        f"{strategy} on {mesh}" for strategy, mesh in zip(meshes["strategy"], meshes["mesh"], strict=True)
    )
    caption(figure, f"{shown}; {what_was_left_out(rows, points, 'the most devices of its strategy')}")


def legend(figure: Figure, points: pd.DataFrame, look: Look, lines: bool = True) -> None:
    """Name each strategy that is drawn, with a line or without, and each line that has a label of its own."""
    style = "-" if lines else ""
    handles = [
        Line2D([], [], color=look["palette"][name], marker=look["markers"][name], linestyle=style, label=name)
        for name in look["hue_order"]
        if name in set(points["strategy"])
    ]
    if not points["best"].all():
        handles.append(Line2D([], [], color=GREY, marker="o", alpha=0.4, linestyle="", label="other meshes"))
    if "tokens_per_second_low" in points and points["tokens_per_second_low"].notna().any():
        handles.append(Line2D([], [], color=GREY, marker="|", linestyle="", markersize=10, label="95% interval"))
    labelled = {
        label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles=[*handles, *labelled.values()], loc="outside right center", frameon=False)


def strategy_lines(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Look) -> None:
    """Draw each strategy's points, a line through its fastest ones, and their intervals, strategies side by side.

    The axis of x must be logarithmic, as `doubling_axis` makes it.
    """
    points = points.assign(side_by_side=side_by_side(points, x, look))
    best = points[points["best"]]
    intervals(axes, best, "side_by_side", y, look)
    sns.scatterplot(points, x="side_by_side", y=y, ax=axes, alpha=0.4, linewidth=0, **look)
    style = {"dashes": False, "errorbar": None, "markersize": 8, "markeredgewidth": 0.6, "linewidth": 1.2, "zorder": 3}
    sns.lineplot(best, x="side_by_side", y=y, ax=axes, **style, **look)


def side_by_side(points: pd.DataFrame, x: str, look: Look) -> pd.Series:
    """Return where to draw each point on a logarithmic axis so that no strategy's interval hides another's.

    The strategies at one x stand in the order of the legend, centred on x.
    """
    names = {tick: set(part) for tick, part in points.groupby(x)["strategy"]}
    order = {tick: [name for name in look["hue_order"] if name in present] for tick, present in names.items()}
    step = SIDE_BY_SIDE * smallest_gap(points[x]) / max(map(len, order.values()))
    doublings = [
        step * (order[tick].index(name) - (len(order[tick]) - 1) / 2)
        for tick, name in zip(points[x], points["strategy"], strict=True)
    ]
    return points[x] * np.exp2(doublings)


def smallest_gap(values: pd.Series) -> float:
    """Return the smallest distance of two of the values in doublings; 1 if all are equal."""
    gaps = np.diff(np.log2(np.unique(values)))
    return float(gaps.min()) if len(gaps) else 1.0


def half_band(values: pd.Series) -> float:
    """Return the factor from a tick to the end of the band in which points stand side by side."""
    return 2 ** (0.6 * SIDE_BY_SIDE * smallest_gap(values))


def intervals(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Look) -> None:
    """Draw the 95% interval of each point that has one behind its marker, in the colour of its strategy."""
    for strategy, own in points.groupby("strategy", sort=False):
        ends = [own[y] - own[f"{y}_low"], own[f"{y}_high"] - own[y]]
        style = {"ecolor": look["palette"][strategy], "elinewidth": 1.6, "capsize": 3.5, "capthick": 1.6, "zorder": 2}
        axes.errorbar(own[x], own[y], ends, fmt="none", **style)


def doubling_axis(axes: Axes, values: pd.Series, label: str) -> None:
    """Space x by doublings, with a tick at each value and a band behind the points that stand side by side there."""
    ticks = sorted(values.unique())
    half, margin = half_band(values), 2 ** (SIDE_BY_SIDE * smallest_gap(values))
    for tick in ticks:
        axes.axvspan(tick / half, tick * half, color=BAND, linewidth=0, zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.grid(visible=False, axis="x")
    axes.set(xlabel=label, xlim=(ticks[0] / margin, ticks[-1] * margin))


def ideal_line(axes: Axes, points: pd.DataFrame, y: str) -> None:
    """Draw and name the ideal, if `single` was measured to compare with.

    An ideal that grows is drawn across the band of each number of devices: a slope would be too high for the strategies
    on one side of the tick, and too low for those on the other.
    """
    ideal = points.dropna(subset=y).drop_duplicates("devices")
    if ideal.empty:
        return
    name = "ideal: throughput of one device" if points["virtual_devices"].all() else "ideal: linear speed-up"
    style = {"color": GREY, "linestyle": "--", "zorder": 1, "label": name}
    if ideal[y].nunique() == 1:
        axes.axhline(ideal[y].iloc[0], **style)
    else:
        half = half_band(points["devices"])
        axes.hlines(ideal[y], ideal["devices"] / half, ideal["devices"] * half, linewidth=1.5, **style)


def throughput_axis(axes: Axes, points: pd.DataFrame) -> None:
    """Draw throughput from zero on virtual devices and where it hardly differs; by doublings where it should double."""
    axes.set_ylabel("throughput (tokens/s)")
    drawn = points.filter(["tokens_per_second", "tokens_per_second_high", "ideal_tokens_per_second"])
    if points["virtual_devices"].all() or np.nanmax(drawn) < 4 * np.nanmin(drawn):
        axes.set_ylim(0, 1.1 * np.nanmax(drawn))
    else:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter("{x:,.0f}")


def byte_unit(largest: float) -> tuple[int, str]:
    """Choose the unit in which the largest size reads well: its bytes, and its name."""
    return (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")
