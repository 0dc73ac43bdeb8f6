"""What figures draw on their axes: curves of strategies, stacked bars, axes with doublings, ideals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogFormatter, NullFormatter, NullLocator

from results.figures.palette import GREY, PURE_BLACK, WHITE, strategy_looks

LOG_SPAN = 4.0
"""A vertical axis is logarithmic if its largest value is at least this times the smallest, and the ideal grows."""
DODGE = 0.3
"""Width over which strategies at the same place of an axis stand side by side, in steps of the axis."""
SMALLEST = 0.002
"""Smallest part of a bar, over the longest bar, that a legend names."""
IDEAL: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 1.2, "zorder": 1}


def look_of(strategies: Iterable[str]) -> dict[str, Any]:
    """Return the looks of strategies as arguments of seaborn's functions, in the order in which legends name them."""
    looks = strategy_looks(strategies)
    return {
        "hue": "strategy",
        "hue_order": list(looks),
        "palette": {name: look.colour for name, look in looks.items()},
        "legend": False,
    }


def strategy_handles(strategies: Iterable[str], lines: bool = True) -> list[Line2D]:
    """Return an entry of a legend for each strategy."""
    return [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="-" if lines else "", label=name)
        for name, look in strategy_looks(strategies).items()
    ]


def curves(axes: Axes, points: pd.DataFrame, x: str, value: str = "value", dodge: float = DODGE) -> None:
    """Draw a line with markers and 95% intervals for each strategy, on an axis of doublings.

    Points have columns `strategy`, x and `value`, and the interval in `low` and `high`, NaN if it is unknown. `dodge`
    is the width over which the strategies stand side by side.
    """
    looks = strategy_looks(points["strategy"])
    ends = [points.assign(**{value: points[end]}) for end in (value, "low", "high") if end in points]
    style: dict[str, Any] = {
        "markersize": mpl.rcParams["lines.markersize"],
        "markeredgecolor": WHITE,
        "markeredgewidth": 0.5,
        "linewidth": mpl.rcParams["lines.linewidth"],
        "err_kws": {"linewidth": 1.1},
        "dodge": dodge if dodge and len(looks) > 1 else False,
        "log_scale": (2, None),
    }
    sns.pointplot(
        pd.concat(ends),  # the median of a point and of the ends of its interval is the point
        x=x,
        y=value,
        estimator="median",
        errorbar=("pi", 100),
        native_scale=True,
        markers=[look.marker for look in looks.values()],
        ax=axes,
        **style,
        **look_of(looks),
    )
    ticks_at(axes.xaxis, points[x])
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="", ylabel="")


def ticks_at(axis: Axis, values: Iterable[float], write: str = "{:,.0f}") -> None:
    """Put a tick at each value, and none between them."""
    ticks = sorted({*values})
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_ticklabels([write.format(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())


def ideal_line(axes: Axes, points: pd.DataFrame, x: str) -> None:
    """Draw and name the ideal, if it is known."""
    ideal = points.dropna(subset="ideal").drop_duplicates(x).sort_values(x)
    if ideal.empty:
        return
    virtual = bool(points["virtual_devices"].all())
    name = "ideal: one device" if virtual else "ideal: linear"
    axes.plot(ideal[x], ideal["ideal"], label=name, **IDEAL)


def value_axis(panels: Sequence[Axes], points: pd.DataFrame, write: str = "{x:,g}") -> None:
    """Scale the vertical axis of panels that share it: by doublings if values should differ and do, else from zero."""
    drawn = points.filter(["value", "low", "high", "ideal"]).astype(float)
    smallest, largest = np.nanmin(drawn), np.nanmax(drawn)
    should_differ = points["ideal"].nunique() > 1 if "ideal" in points else not points["virtual_devices"].all()
    for axes in panels:
        if should_differ and smallest > 0 and largest >= LOG_SPAN * smallest:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.07 * largest)
        axes.yaxis.set_major_formatter(write)


def plain_ticks(axis: Axis) -> None:
    """Label a log axis without formulas, which is what matplotlib does by default."""
    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(NullFormatter())


def stacked_bars(axes: Axes, parts: pd.DataFrame, colours: Mapping[str, str], labels: Sequence[str]) -> None:
    """Draw a horizontal bar for each row, the first on top: its columns end to end, negative ones to the left of zero.

    `colours` has the columns that are drawn, in their order.
    """
    places = np.arange(len(parts))
    least = SMALLEST * parts[list(colours)].abs().sum(axis="columns").max()
    for negative in (False, True):
        ends = np.zeros(len(parts))
        for name, colour in colours.items():
            widths = parts[name].fillna(0).to_numpy(float)
            widths = np.where((widths < 0) == negative, widths, 0.0)
            shown = name if np.abs(widths).max() > least else f"_{name}"
            axes.barh(places, widths, left=ends, color=colour, height=0.75, linewidth=0, label=shown)
            ends = ends + widths
    axes.set_yticks(places, labels)
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def bar_ticks(axes: Axes, values: Iterable[float], label: str, **style: Any) -> None:
    """Draw a tick across each bar."""
    found = np.asarray([*values], float)
    if np.isfinite(found).any():
        tick: dict[str, Any] = {"markersize": 10, "markeredgewidth": 1.6, "markeredgecolor": PURE_BLACK}
        axes.plot(found, np.arange(len(found)), "|", label=label, **tick | style)
