"""How much of the time the stages of a pipeline work, against microbatches: a panel for each pipeline."""

import textwrap

import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import Figure, Style, legend, named_axes, opened
from results.figures.marks import IDEAL, ticks_at
from results.figures.palette import GREY, strategy_looks
from results.figures.tables import one_batch, utilization


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw what the formulas say as lines, and what was measured as points."""
    panels = [(name, part) for name, part in points.groupby("pipeline", sort=False)]
    figure, grid = opened(style, len(panels))
    looks = strategy_looks(points["strategy"])
    for axes, (title, part) in zip(grid, panels, strict=True):
        colour, marker = looks[part["strategy"].iloc[0]]
        axes.plot(part["microbatches"], part["formula"], color=GREY, label="by formula: 1 - bubble")
        axes.plot(part["microbatches"], part["lockstep"], **IDEAL, label="by formula, ticks in lockstep")
        if part["measured"].notna().any():
            axes.plot(part["microbatches"], part["measured"], marker, color=colour, label="measured")
        axes.set_title("\n".join(textwrap.wrap(str(title), 34)), fontsize="small")
    grid[0].set_xscale("log", base=2)
    ticks_at(grid[0].xaxis, points["microbatches"])
    grid[0].set_ylim(0, max(1.05, 1.05 * points["measured"].max()) if points["measured"].notna().any() else 1.05)
    grid[0].yaxis.set_major_formatter("{x:.0%}")
    named_axes(grid, "microbatches", "utilization")
    legend(figure)
    return figure


HEADING = "Utilization of pipeline stages against microbatches"
FIGURE = Figure("utilization_vs_microbatches", HEADING, one_batch, utilization, draw, lambda points: "")
