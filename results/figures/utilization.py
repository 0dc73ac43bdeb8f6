"""How much of the time the stages of a pipeline work, against microbatches: a panel for each pipeline."""

import textwrap

import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import Figure, Style, legend, named_axes, opened
from results.figures.marks import IDEAL, ticks_at
from results.figures.palette import GREY, strategy_looks
from results.figures.tables import leave_out, one_batch, with_several


def utilization(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of pipelines with several numbers of microbatches, with the fraction of time that stages work.

    `formula` is that of a schedule whose stages wait only for what they need, `lockstep` that of one whose ticks last
    as long as their longest pass, both for passes as long as their FLOPs. `measured` is the time of a step without
    bubbles over its time with them, by its attribution, without exposed communication. It is NaN on virtual devices
    that share a process: a stage that idles leaves its cores to the others there. `pipeline` names what the rows of a
    curve share.
    """
    pipelined = rows["mesh"].str.contains("pipeline=") & (rows["predicted.bubble"] > 0)
    names = rows["strategy"] + " " + rows["mesh"] + " " + rows["options"].fillna("")
    rows = leave_out(rows.assign(pipeline=names.str.strip()), ~pipelined, "without pipeline stages")
    same = ["pipeline", "global_batch_sequences"]
    rows = with_several(rows, "microbatches", same, "without another number of microbatches")
    bubbles = rows["attribution.schedule_bubble_seconds"] + rows["attribution.lockstep_bubble_seconds"]
    synchronized = rows["step_seconds_median"] - rows["attribution.exposed_communication_seconds"]
    formula = 1 - rows["predicted.bubble"]
    alone = ~rows["virtual_devices"].astype(bool) | rows["processes"].eq(rows["devices"])
    return rows.assign(
        formula=formula,
        lockstep=formula * (1 - rows["predicted.lockstep_bubble"]),
        measured=(1 - bubbles / synchronized).where(alone),
    ).sort_values("microbatches", kind="stable")


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
