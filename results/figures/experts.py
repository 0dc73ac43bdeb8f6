"""The figures of mixtures of experts: against the imbalance of the experts, and against tokens on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from results.figures.canvas import (
    Look,
    byte_unit,
    canvas,
    caption,
    doubling_axis,
    intervals,
    legend,
    look_of,
    name_meshes,
    strategy_lines,
    what_was_left_out,
)
from results.figures.curves import is_counted, scaling
from results.figures.palette import GREY
from results.figures.search import how_certain
from results.figures.windows import swept_points
from results.records.reading import RecordError
from results.records.rows import WORKLOAD

NAME = "time_and_memory_vs_imbalance"
SAME = [name for name in WORKLOAD if name != "forced"]
"""The columns in which the rows of a sweep are equal."""
COMPARED = ["expert", "fsdp"]
"""The strategies that are drawn against tokens on a device."""
SEARCHED = ["preset", "sequence_tokens", "dtype", "topology", "machine"]
"""The facts in which searches that are drawn together are equal."""
PANELS = {"step_ms": "time of a step (ms)", "memory": "memory per device", "dropped": "choices dropped (%)"}


def imbalance_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest row of each strategy on its most devices, for each routing, with the load that was counted."""
    rows = rows[is_counted(rows) & rows["experts.largest_over_mean"].notna()]
    points = swept_points(rows, "forced")
    nothing = {f"{column}_{end}": float("nan") for column in ("memory", "dropped") for end in ("low", "high")}
    dropped = 100 * points["experts.dropped_fraction"]
    return points.assign(imbalance=points["experts.largest_over_mean"].round(3), dropped=dropped, **nothing)


def time_and_memory_vs_imbalance(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw the step time, the memory per device and what is dropped against the largest load of an expert.

    The load is that of the most chosen expert over the mean, in the worst layer. Each strategy is on its most devices.
    """
    points = imbalance_points(rows)
    divisor, unit = byte_unit(points["memory.total_bytes"].max())
    points = points.assign(memory=points["memory.total_bytes"] / divisor)
    figure, panels = canvas(rows, points, "Time and memory against the imbalance of experts", 3, one_unit=False)
    for axes, (column, label) in zip(panels, PANELS.items(), strict=True):
        strategy_lines(axes, points, "imbalance", column, look)
        doubling_axis(axes, points["imbalance"], "largest load over the mean")
        axes.set_xticks(ticks := sorted(points["imbalance"].unique()), [f"{tick:.2g}" for tick in ticks])
        top = max(points[column].max(), points[f"{column}_high"].max())
        axes.set(ylabel=f"{label} ({unit})" if column == "memory" else label, ylim=(0, 1.1 * top or 1))
    legend(figure, points, look)
    name_meshes(figure, rows, points)
    return figure


def on_most_devices(rows: pd.DataFrame, seconds: str) -> pd.DataFrame:
    """Return the fastest row of `expert=n` and of `fsdp=n` for each number of tokens, on the most devices n of both.

    `tokens` are those of a microbatch on a device. All rows have the same number of microbatches, the smallest with
    which both strategies have several numbers of tokens, so that equal tokens mean equal batches. Without one there are
    no rows.
    """
    alone = rows["strategy"] + "=" + rows["devices"].map("{:.0f}".format)
    rows = rows[rows["strategy"].isin(COMPARED) & (rows["mesh"] == alone)]
    sequences = rows["global_batch_sequences"] / rows["devices"] / rows["microbatches"]
    rows = rows.assign(tokens=sequences * rows["sequence_tokens"], best=True)
    layout = ["devices", "microbatches"]
    rows = rows.loc[rows.groupby(["strategy", *layout, "tokens"])[seconds].idxmin()]
    rows = rows[rows.groupby(["strategy", *layout])["tokens"].transform("nunique") > 1]
    rows = rows[rows.groupby(layout)["strategy"].transform("nunique") == len(COMPARED)]
    rows = rows[rows["devices"] == rows["devices"].max()]
    return rows[rows["microbatches"] == rows["microbatches"].min()]


def measured_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a run that are drawn against tokens on a device."""
    points = on_most_devices(scaling(rows), "step_seconds_median")
    ends = {f"ms{end}": 1e3 * points[f"step_seconds{end or '_median'}"] for end in ("", "_low", "_high")}
    return points.assign(**ends, sent=points["predicted.sent_bytes"])


def crossover_tokens(points: pd.DataFrame) -> float:
    """Tokens at which both strategies send as many bytes by formula; NaN if that is not known.

    The bytes of a strategy are a constant and a multiple of the tokens, as long as it keeps its options.
    """
    if points.groupby("strategy")["options"].nunique(dropna=False).gt(1).any():
        return float("nan")
    lines = [np.polyfit(own["tokens"], own["sent"], 1) for _, own in points.groupby("strategy")]
    (expert_slope, expert), (fsdp_slope, fsdp) = lines
    return (fsdp - expert) / (expert_slope - fsdp_slope)


def draw_against_tokens(axes: Axes, points: pd.DataFrame, look: Look) -> None:
    """Draw the time of a step against tokens on a device, and where both strategies send as many bytes."""
    style = {"dashes": False, "errorbar": None, "markersize": 8, "markeredgewidth": 0.6, "linewidth": 1.2}
    sns.lineplot(points, x="tokens", y="ms", ax=axes, **style, **look)
    if (tokens := crossover_tokens(points)) > 0:
        axes.axvline(tokens, color=GREY, linestyle="--", label=f"as many bytes by formula:\n{tokens:,.0f} tokens")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2, subs=[1.5])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ticks := sorted(points["tokens"].unique()), [f"{tick:,g}" for tick in ticks])
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("{x:,g}")
    axes.set(xlabel="tokens of a microbatch on a device", ylabel="time of a step (ms)")


def step_time_vs_tokens(rows: pd.DataFrame, look: Look) -> Figure:
    """Draw the time of a step of `expert` and `fsdp` against tokens on a device."""
    points = measured_points(rows)
    figure, (axes,) = canvas(rows, points, "Time of a step against tokens on a device")
    intervals(axes, points, "tokens", "ms", look)
    draw_against_tokens(axes, points, look)
    legend(figure, points, look)
    meshes = " or ".join(points["mesh"].unique())
    caption(figure, what_was_left_out(rows, points, f"the mesh {meshes}"))
    return figure


def predicted_time_vs_tokens(searches: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> Figure:
    """Draw the same as predicted, of several searches, as `read_search` returns each."""
    facts, found = searches[0][0], [rows.assign(**{name: own[name] for name in SEARCHED}) for own, rows in searches]
    rows = pd.concat(found, ignore_index=True)
    if differing := [name for name in SEARCHED if rows[name].nunique(dropna=False) > 1]:
        first, other, *_ = rows[differing[0]].unique()
        raise RecordError(f"{differing[0]} differs: {first} and {other}; plot them apart")
    points = on_most_devices(rows[rows["status"].eq("fits")], "predicted_seconds")
    if points.empty:
        needs = "`expert=N` and `fsdp=N` fit with several batches and the same --microbatches"
        raise RecordError(f"nothing to draw; several searches are drawn if {needs}")
    look = look_of(COMPARED)
    points = points.assign(ms=1e3 * points["predicted_seconds"], sent=points["sent_bytes"])
    figure = Figure(figsize=(10, 5), layout="constrained")
    draw_against_tokens(figure.subplots(), points, look)
    work = f"{facts['preset']}, {facts['dtype']}, on {points['devices'].iloc[0]} devices of {facts['topology']}"
    figure.suptitle(f"Predicted time of a step against tokens on a device\n{work}", x=0.02, ha="left", size="medium")
    legend(figure, points, look)
    caption(figure, how_certain(facts))
    return figure
