"""Throughput against memory per device, with the frontier: a panel for each number of devices."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure as Drawn

from results.figures.frame import Figure, Style, legend, named_axes, opened
from results.figures.marks import look_of, strategy_handles, value_axis
from results.figures.palette import GREY, strategy_looks
from results.figures.tables import by_devices, fastest, leave_out, one_batch
from results.records.rows import is_counted
from results.words import byte_unit


def several_strategies(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows whose memory is known, if there is a strategy besides `single`; `best` marks the fastest."""
    rows = leave_out(rows, rows["memory"].isna(), "without memory sizes")
    if rows.loc[is_counted(rows), "strategy"].eq("single").all():
        rows = leave_out(rows, rows["strategy"].eq("single"), "of single alone")
    return rows.assign(best=is_counted(fastest(rows, "throughput")))


def frontier(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows on the Pareto frontier: those for which no other row is as fast and as small or better."""
    rows = rows.sort_values(["memory", "throughput"], ascending=[True, False])
    return rows[~(rows["throughput"] <= rows["throughput"].cummax().shift())]


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw a marker for each case with the interval of the fastest mesh of each strategy; other meshes are pale."""
    divisor, unit = byte_unit(points["memory"].max())
    points = points.assign(size=points["memory"] / divisor)
    panels = by_devices(points)
    figure, grid = opened(style, len(panels))
    looks = strategy_looks(points["strategy"])
    markers = {"style": "strategy", "markers": {name: look.marker for name, look in looks.items()}}
    steps = {"color": GREY, "linestyle": ":", "drawstyle": "steps-post", "zorder": 1, "label": "frontier"}
    for axes, (title, part) in zip(grid, panels.items(), strict=True):
        edge = frontier(part[part["strategy"] != "single"])
        if len(edge) > 1:
            axes.plot(edge["size"], edge["throughput"], **steps)
        for _, row in part[part["best"]].iterrows():
            ends = [[row["throughput"] - row["throughput_low"]], [row["throughput_high"] - row["throughput"]]]
            axes.errorbar(row["size"], row["throughput"], ends, ecolor=looks[row["strategy"]].colour, elinewidth=1.1)
        alpha = part["best"].map({True: 1.0, False: 0.4}).to_numpy()
        sns.scatterplot(part, x="size", y="throughput", ax=axes, alpha=alpha, zorder=3, **markers, **look_of(looks))
        axes.set_title(title)
    grid[0].set_xlim(0, 1.07 * points["size"].max())
    columns = {"throughput": "value", "throughput_low": "low", "throughput_high": "high"}
    value_axis(grid, points[[*columns, "virtual_devices"]].rename(columns=columns))
    named_axes(grid, f"memory per device ({unit})", "throughput (tokens/s)")
    legend(figure, strategy_handles(points["strategy"], lines=False))
    return figure


HEADING = "Throughput against memory per device"
FIGURE = Figure("throughput_vs_memory", HEADING, one_batch, several_strategies, draw)
