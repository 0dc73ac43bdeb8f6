"""What a device holds in every case: a panel for each number of devices, and a bar for each case."""

import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import NARROW, Figure, Style, legend, opened
from results.figures.marks import bar_ticks, stacked_bars
from results.figures.palette import PART_COLOURS
from results.figures.tables import PARTS, case_labels, leave_out, memory_columns, one_batch, with_compiled
from results.records.rows import is_counted
from results.words import byte_unit

MOST_BARS = 15
"""The largest and the smallest cases that are drawn of each number of devices."""


def memory_cases(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the largest and the smallest cases of each number of devices, the largest first, with a column a part.

    Rows that were only compiled count, too. `formula` is the total by formula, or NaN without one.
    """
    rows = memory_columns(leave_out(with_compiled(rows), rows["memory"].isna(), "without memory sizes"))
    formula = rows[["predicted.argument_bytes", "predicted.temp_bytes"]].sum(axis="columns", skipna=False)
    rows = rows.assign(**{part: rows[column] for part, column in PARTS.items()}, formula=formula)
    rows = rows.sort_values("memory", ascending=False, kind="stable")
    own = rows[is_counted(rows)].groupby("devices")
    between = own.cumcount().ge(MOST_BARS) & own.cumcount(ascending=False).ge(MOST_BARS)
    others = between.reindex(rows.index, fill_value=False)
    return leave_out(rows, others, f"between the {MOST_BARS} largest and the {MOST_BARS} smallest")


def draw(cases: pd.DataFrame, style: Style) -> Drawn:
    """Draw the parts of each case's memory, its total, and a tick at its total by formula."""
    panels = [part for _, part in cases.groupby("devices")]
    bars = [len(part) for part in panels]
    size = (10.0, 1.4 + 0.35 * len(panels) + 0.25 * sum(bars))
    shared = {"sharex": True, "sharey": False, "height_ratios": [count + 0.6 for count in bars]}
    figure, grid = opened(style, len(panels), size, columns=1, **shared)
    divisor, unit = byte_unit(cases["memory"].max())
    for axes, part in zip(grid, panels, strict=True):
        sizes = part[[*PART_COLOURS, "memory", "formula"]].astype(float) / divisor
        stacked_bars(axes, sizes, PART_COLOURS, case_labels(part))
        bar_ticks(axes, sizes["formula"], "total by formula")
        for place, (total, formula) in enumerate(zip(sizes["memory"], sizes["formula"].fillna(0), strict=True)):
            end = max(total, formula), place
            axes.annotate(f"{total:,.1f}", end, (4, 0), textcoords="offset points", va="center", size="small")
        axes.yaxis.set_label_position("right")
        axes.set_ylabel(f"{part['devices'].iloc[0]:.0f} dev.", rotation=0, ha="left", va="center")
    room = 1.5 if style.size and style.size[0] < NARROW else 1.12  # for the total at the end of a bar
    longest = cases[["memory", "formula"]].max().max() / divisor
    grid[-1].set(xlabel=f"memory per device ({unit})", xlim=(0, room * longest))
    legend(figure, below=True)
    return figure


FIGURE = Figure("memory_per_device", "Memory per device", one_batch, memory_cases, draw, lambda points: "")
