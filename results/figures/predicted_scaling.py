"""The figure of predicted time against devices, for strong and weak scaling, with the bottleneck of the best."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.frame import PLAIN, Style, described, legend, opened
from results.figures.marks import IDEAL, plain_ticks
from results.figures.palette import GREY, LIMIT_COLOURS, PURE_BLACK, WHITE, strategy_looks
from results.figures.search import how_certain
from results.records.reading import RecordError

BOTTLENECK = "The bottleneck is the resource that would save most of the step if it were infinitely fast."
PANELS = {"strong": "strong scaling", "weak": "weak scaling"}


def figure_of(facts: dict[str, Any], rows: pd.DataFrame, style: Style = PLAIN) -> Figure:
    """Draw the time of a step, and below it the utilization, against devices, a column for each scaling.

    Facts and rows are those of `read_search`: the best candidate on each number of devices, or why none fits.
    """
    drawn = rows[rows["status"] == "fits"]
    if drawn.empty:
        raise RecordError("nothing to draw, no candidate fits on any number of devices")
    drawn = drawn.assign(percent=100 * drawn["model_flops_utilization"].astype(float))
    figure, panels = opened(style, 2 * len(PANELS), (11.0, 7.0), columns=len(PANELS), sharey="row")
    for above, below, (scaling, name) in zip(panels[: len(PANELS)], panels[len(PANELS) :], PANELS.items(), strict=True):
        part = drawn[drawn["scaling"] == scaling]
        points(above, part, "predicted_seconds")
        points(below, part, "percent")
        above.set_xscale("log", base=2)
        above.set(yscale="log")
        above.set_title(f"{name}: {batches(part)}" if len(part) else name, fontsize="medium")
        plain_ticks(above.yaxis)
        plain_ticks(below.xaxis)
        above.yaxis.set_major_formatter("{x:g}")
        below.set(ylim=(0, 1.1 * drawn["percent"].max()), xlabel="devices")
        below.set_xticks(ticks := sorted(rows["devices"].unique()), [f"{tick:,}" for tick in ticks], rotation=45)
        if len(part):  # each device keeps the throughput that it has on the smallest number of devices
            work = part["global_batch_sequences"] / part["devices"]
            ideal = part["predicted_seconds"].iloc[0] * work / work.iloc[0]
            above.plot(part["devices"], ideal, label="ideal: as on the fewest devices", **IDEAL)
    panels[0].set_ylabel("predicted time of a step (s)")
    panels[len(PANELS)].set_ylabel("model FLOPs utilization (%)")
    legend(figure, handles_of(drawn))
    kind = facts["topology"].partition(":")[0]
    title = ["The best candidate on each number of devices, as predicted", facts["preset"], f"on {kind}"]
    title += [f"{facts['sequence_tokens']} tokens in a sequence", facts["dtype"]]
    missing = f"Nothing fits at {len(rows) - len(drawn)} of {len(rows)} points." if len(drawn) < len(rows) else ""
    return described(figure, style, title, [BOTTLENECK], [how_certain(facts), missing])


def points(axes: Axes, part: pd.DataFrame, column: str) -> None:
    """Draw a column against devices: the colour is the bottleneck, the marker the strategy."""
    axes.plot(part["devices"], part[column], color=GREY, linewidth=1, zorder=1)
    looks = strategy_looks(part["strategy"])
    for row in part.to_dict("records"):
        look: dict[str, Any] = {"marker": looks[row["strategy"]].marker, "color": LIMIT_COLOURS[row["limit"]]}
        axes.scatter(row["devices"], row[column], s=60, edgecolor=PURE_BLACK, linewidth=0.5, zorder=3, **look)


def handles_of(drawn: pd.DataFrame) -> list[Line2D]:
    """Name the bottlenecks and the strategies."""
    looks = {
        f"bottleneck: {name}": (colour, "o") for name, colour in LIMIT_COLOURS.items() if name in set(drawn["limit"])
    }
    looks |= {name: (WHITE, look.marker) for name, look in strategy_looks(drawn["strategy"]).items()}
    return [
        Line2D([], [], color=colour, marker=marker, markeredgecolor=PURE_BLACK, linestyle="", label=name)
        for name, (colour, marker) in looks.items()
    ]


def batches(part: pd.DataFrame) -> str:
    """Say what the batch is: the same on all devices, or as many sequences for each."""
    if part["global_batch_sequences"].nunique() == 1:
        return f"{part['global_batch_sequences'].iloc[0]:,} sequences"
    sequences = part["global_batch_sequences"] / part["devices"]
    return " or ".join(f"{value:g}" for value in sorted(sequences.unique())) + " sequences a device"
