"""The scaling curves: a metric against devices, at the same global batch (strong) or the same batch of a device (weak).

Speed-up is throughput over that of one device, and parallel efficiency is speed-up over devices.
"""

from functools import partial
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn

from results.figures.frame import INTERVALS, Figure, Style, legend, named_axes, opened
from results.figures.marks import DODGE, curves, ideal_line, strategy_handles, ticks_at, value_axis
from results.figures.tables import Scaling, one_batch, scaling
from results.words import byte_unit


class Metric(NamedTuple):
    """How a metric is drawn: its heading, the label of its axis, and the format of its ticks."""

    heading: str
    label: str
    write: str = "{x:,g}"


METRICS = {
    "throughput": Metric("Throughput", "throughput (tokens/s)"),
    "speedup": Metric("Speed-up over one device", "speed-up"),
    "efficiency": Metric("Parallel efficiency", "parallel efficiency", "{x:.0%}"),
    "step_time": Metric("Time of a step", "time of a step (ms)"),
    "memory": Metric("Memory per device", "memory per device"),
    "mfu": Metric("Model FLOPs utilization", "model FLOPs utilization", "{x:.0%}"),
}
FACETS = {"strong": "global batch {:,g}", "weak": "{:,g} sequences a device"}


def draw_metric(axes: Axes, points: pd.DataFrame, divisor: float = 1.0) -> None:
    """Draw the points of `tables.scaling` on axes, with the ideal."""
    points = points.assign(value=points["value"] / divisor)
    flat = points["ideal"].nunique() <= 1
    curves(axes, points, "devices", dodge=DODGE if flat else 0.0)
    ideal_line(axes, points, "devices")


def label_of(points: pd.DataFrame, metric: str) -> tuple[str, float]:
    """Return the label of the axis of a metric, and by what values are divided."""
    if metric != "memory":
        return METRICS[metric].label, 1.0
    divisor, unit = byte_unit(points["value"].max())
    return f"{METRICS[metric].label} ({unit})", divisor


def draw(points: pd.DataFrame, style: Style, metric: str, kind: Scaling) -> Drawn:
    """Draw a metric in a panel for each batch."""
    facets = sorted(points["facet"].unique())
    figure, panels = opened(style, len(facets))
    label, divisor = label_of(points, metric)
    for axes, facet in zip(panels, facets, strict=True):
        draw_metric(axes, points[points["facet"] == facet], divisor)
        if len(facets) > 1:
            axes.set_title(FACETS[kind].format(facet))
    value_axis(panels, points.assign(value=points["value"] / divisor), METRICS[metric].write)
    ticks_at(panels[0].xaxis, points["devices"])
    named_axes(panels, "devices", label)
    legend(figure, strategy_handles(points["strategy"]))
    return figure


def meshes(points: pd.DataFrame) -> str:
    """Say on which meshes each strategy is drawn, if its number of devices does not tell.

    >>> meshes(pd.DataFrame({"strategy": ["hsdp", "hsdp"], "mesh": ["data=2,fsdp=2", "data=4,fsdp=2"]}))
    'Meshes: hsdp on data=2,fsdp=2 or data=4,fsdp=2.'
    """
    several = points[points["mesh"].str.contains(",")]
    found = {
        str(name): " or ".join(dict.fromkeys(own["mesh"])) for name, own in several.groupby("strategy", sort=False)
    }
    words = "; ".join(f"{name} on {where}" for name, where in found.items())
    return f"Meshes: {words}." if words else ""


def figure_of(metric: str, kind: Scaling) -> Figure:
    """Return the figure of a metric."""
    same = "the same global batch" if kind == "strong" else "the same batch of a device"
    return Figure(
        f"{metric}_vs_devices" if kind == "strong" else f"{metric}_vs_devices_weak",
        METRICS[metric].heading + (" against devices" if kind == "strong" else ", weak scaling"),
        partial(one_batch, kind=kind),
        partial(scaling, metric=metric, kind=kind),
        partial(draw, metric=metric, kind=kind),
        lambda points: " ".join(filter(None, (f"Compared at {same}.", meshes(points), INTERVALS))),
    )
