"""A sweep over attention windows: step time and memory against the window, each strategy on its most devices."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.curves import meshes
from results.figures.frame import INTERVALS, Figure, Style, legend, opened
from results.figures.marks import curves, strategy_handles, ticks_at, value_axis
from results.figures.tables import ANOTHER_BATCH, ANOTHER_WORKLOAD, Batch, fastest, leave_out, widest_batch
from results.records.rows import ATTENTION, WORKLOAD, is_counted
from results.words import byte_unit

PANELS = {"step_time": "time of a step (ms)", "memory": "memory per device"}
SAME = [*(name for name in WORKLOAD if name != "attention"), *ATTENTION[1:]]
"""The columns in which the rows of a sweep are equal."""


def sweeps(
    rows: pd.DataFrame, batch: Batch, varied: str = "attention", same: Sequence[str] = SAME
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each sweep: rows that count with several values of a column, otherwise of the same work.

    A sweep is a label and all rows, others marked as left out.
    """
    for values, part in rows.groupby(list(same), sort=False, dropna=False):
        if part.loc[is_counted(part), varied].nunique() > 1:
            marked = leave_out(rows, ~rows.index.isin(part.index), ANOTHER_WORKLOAD)
            chosen = batch if isinstance(batch, int) else widest_batch(marked)
            label = "-".join(text for text in map(str, values) if text not in ("nan", "None"))
            yield label, leave_out(marked, marked["global_batch_sequences"].ne(chosen), ANOTHER_BATCH)


def on_most_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the fastest row of each strategy on its most devices, of each workload."""
    rows = leave_out(fastest(rows, "step_time"), rows["memory"].isna(), "without memory sizes")
    most = rows["devices"].where(is_counted(rows)).groupby(rows["strategy"]).transform("max")
    return leave_out(rows, rows["devices"].ne(most), "on fewer than the most devices of its strategy")


def window_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the points of each window. Dense attention has the whole sequence."""
    windows = rows["attention_window"].astype(float).fillna(rows["sequence_tokens"])
    return on_most_devices(rows.assign(window=windows.clip(upper=rows["sequence_tokens"])))


def against(points: pd.DataFrame, style: Style, x: str, labels: dict[str, str], write: str) -> Drawn:
    """Draw columns against another column, a panel each, with lines for strategies; `labels` are of the panels."""
    figure, panels = opened(style, len(labels), sharey=False)
    divisor, unit = byte_unit(points["memory"].max())
    points = points.assign(memory=points["memory"] / divisor)
    for axes, (column, label) in zip(panels, labels.items(), strict=True):
        ends = {
            end: points[f"{column}_{end}"] if f"{column}_{end}" in points else float("nan") for end in ("low", "high")
        }
        values = points.assign(value=points[column], **ends, ideal=float("nan"))
        curves(axes, values, x)
        value_axis([axes], values)
        axes.set_ylabel(f"{label} ({unit})" if column == "memory" else label)
        ticks_at(axes.xaxis, points[x], write)
    legend(figure, strategy_handles(points["strategy"]))
    return figure


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw step time and memory per device against the attention window."""
    figure = against(points, style, "window", PANELS, "{:.0f}")
    ticks, dense = sorted(points["window"].unique()), points["sequence_tokens"].iloc[0]
    for axes in figure.axes:
        axes.set_xticks(ticks, ["dense" if tick == dense else f"{tick:.0f}" for tick in ticks])
        axes.set_xlabel("attention window (tokens)")
    return figure


def words(points: pd.DataFrame) -> str:
    """Return the caption: the meshes, and what the intervals are."""
    return f"{meshes(points)} {INTERVALS}".strip()


HEADING = "Time and memory against the attention window"
FIGURE = Figure("time_and_memory_vs_window", HEADING, sweeps, window_points, draw, words, sweeps=True)
