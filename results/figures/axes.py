"""The metrics as functions for notebooks: each draws curves against devices on axes, and returns the axes.

All take the rows of `results.load`, of one workload, which may be filtered: metrics are already compared with `single`.
`axes` is where to draw, by default `matplotlib.pyplot.gca()`. `batch_size` is the global batch in sequences, by default
that of most rows. `scaling` is "strong", at the same global batch, or "weak", at the same batch of a device, which is
then what `batch_size` means. Colours and markers are those of `meshmark plot`.
"""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from results.figures import curves
from results.figures.marks import strategy_handles, ticks_at, value_axis
from results.figures.tables import Scaling, one_batch
from results.figures.tables import scaling as scaled
from results.records.rows import is_counted


def draw(
    frame: pd.DataFrame,
    axes: Axes | None = None,
    *,
    metric: str,
    batch_size: int | None = None,
    scaling: Scaling = "strong",
    legend: bool = True,
) -> Axes:
    """Draw a metric of rows against devices, and return the axes."""
    import matplotlib.pyplot as plt  # imported late: it chooses a backend, which commands do not need

    pictures = [scaled(marked, metric, scaling) for _, marked in one_batch(frame, batch_size, scaling)]
    if len(pictures) != 1:
        what = f"{len(pictures)} workloads" if pictures else "no row that can be drawn"
        raise ValueError(f"the frame has {what}; keep the rows of one, as by frame[frame['preset'] == 'nano']")
    points = pictures[0][is_counted(pictures[0])]
    if points.empty:
        raise ValueError(f"no batch has {metric} for several numbers of devices; frame['left_out'] says why")
    axes = axes or plt.gca()
    label, divisor = curves.label_of(points, metric)
    curves.draw_metric(axes, points, divisor)
    value_axis([axes], points.assign(value=points["value"] / divisor), curves.METRICS[metric].write)
    ticks_at(axes.xaxis, points["devices"])
    axes.set(xlabel="devices", ylabel=label)
    if legend:
        axes.legend(handles=[*strategy_handles(points["strategy"]), *axes.get_legend_handles_labels()[0]])
    return axes


throughput = partial(draw, metric="throughput")
"""Tokens per second."""
speedup = partial(draw, metric="speedup")
"""Throughput over that of one device."""
efficiency = partial(draw, metric="efficiency")
"""Speed-up over the number of devices."""
step_time = partial(draw, metric="step_time")
"""Milliseconds of a step."""
memory = partial(draw, metric="memory")
"""Memory of a device; of runs that were only compiled, too."""
mfu = partial(draw, metric="mfu")
"""Model FLOPs utilization."""
