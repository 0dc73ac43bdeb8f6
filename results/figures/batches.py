"""Throughput against the global batch, for strategies that ran with several: a panel for each number of devices."""

import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import Figure, Style, legend, named_axes, opened
from results.figures.marks import curves, strategy_handles, ticks_at, value_axis
from results.figures.tables import all_batches, by_devices, fastest, with_several


def several_batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the points of each strategy that ran with several global batches on the same number of devices."""
    rows = fastest(rows, "throughput")
    return with_several(rows, "global_batch_sequences", ["strategy", "devices"], "without another global batch")


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw a line for each strategy."""
    columns = {"value": "throughput", "low": "throughput_low", "high": "throughput_high"}
    points = points.assign(**{name: points[each] for name, each in columns.items()})
    panels = by_devices(points)
    figure, grid = opened(style, len(panels))
    for axes, (title, part) in zip(grid, panels.items(), strict=True):
        curves(axes, part, "global_batch_sequences")
        axes.set_title(title)
    value_axis(grid, points)
    ticks_at(grid[0].xaxis, points["global_batch_sequences"])
    named_axes(grid, "global batch (sequences)", "throughput (tokens/s)")
    legend(figure, strategy_handles(points["strategy"]))
    return figure


FIGURE = Figure("throughput_vs_batch", "Throughput against global batch", all_batches, several_batches, draw)
