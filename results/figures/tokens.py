"""Mixtures of experts: the time of a step of `expert` and `fsdp` against tokens on a device, measured or predicted."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawn

from results.figures.frame import PLAIN, Figure, Style, described, legend, opened
from results.figures.marks import IDEAL, curves, strategy_handles, ticks_at
from results.figures.search import how_certain
from results.figures.tables import all_batches, leave_out
from results.records.reading import RecordError
from results.records.rows import is_counted

COMPARED = ["expert", "fsdp"]
"""The strategies that are drawn against tokens on a device."""
SEARCHED = ["preset", "sequence_tokens", "dtype", "topology", "machine"]
"""The facts in which searches that are drawn together are equal."""


def on_most_devices(rows: pd.DataFrame, seconds: str) -> pd.DataFrame:
    """Return the fastest row of `expert=n` and of `fsdp=n` for each number of tokens, on the most devices n of both.

    `tokens` are those of a microbatch on a device. All rows have the same number of microbatches, the smallest with
    which both strategies have several numbers of tokens, so that equal tokens mean equal batches. Without one there are
    no rows.
    """
    alone = rows["strategy"] + "=" + rows["devices"].map("{:.0f}".format)
    rows = rows[rows["strategy"].isin(COMPARED) & (rows["mesh"] == alone)]
    sequences = rows["global_batch_sequences"] / rows["devices"] / rows["microbatches"]
    rows = rows.assign(tokens=sequences * rows["sequence_tokens"])
    layout = ["devices", "microbatches"]
    rows = rows.loc[rows.groupby(["strategy", *layout, "tokens"])[seconds].idxmin()]
    rows = rows[rows.groupby(["strategy", *layout])["tokens"].transform("nunique") > 1]
    rows = rows[rows.groupby(layout)["strategy"].transform("nunique") == len(COMPARED)]
    rows = rows[rows["devices"] == rows["devices"].max()]
    return rows[rows["microbatches"] == rows["microbatches"].min()]


def measured_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of a run that are drawn against tokens on a device."""
    points = on_most_devices(rows[is_counted(rows)], "step_seconds_median")
    columns = {"value": "step_time", "low": "step_time_low", "high": "step_time_high", "sent": "predicted.sent_bytes"}
    rows = rows.assign(tokens=points["tokens"], **{name: rows[each] for name, each in columns.items()})
    return leave_out(rows, ~rows.index.isin(points.index), "on other meshes than expert=n and fsdp=n")


def crossover_tokens(points: pd.DataFrame) -> float:
    """Return the tokens at which both strategies send the same bytes by formula; NaN if that is not known.

    The bytes of a strategy are a constant and a multiple of the tokens, as long as it keeps its options.
    """
    if points.groupby("strategy")["options"].nunique(dropna=False).gt(1).any():
        return float("nan")
    lines = [np.polyfit(own["tokens"], own["sent"], 1) for _, own in points.groupby("strategy")]
    (expert_slope, expert), (fsdp_slope, fsdp) = lines
    return (fsdp - expert) / (expert_slope - fsdp_slope)


def draw(points: pd.DataFrame, style: Style) -> Drawn:
    """Draw the time of a step of both strategies, and where they send the same bytes."""
    figure, (axes,) = opened(style)
    curves(axes, points, "tokens", dodge=0.0)
    if (tokens := crossover_tokens(points)) > 0:
        axes.axvline(tokens, label=f"same bytes by formula:\n{tokens:,.0f} tokens", **IDEAL)
    axes.set_yscale("log", base=2, subs=[1.5])
    ticks_at(axes.xaxis, points["tokens"], "{:,g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("{x:,g}")
    axes.set(xlabel="tokens of a microbatch on a device", ylabel="time of a step (ms)")
    legend(figure, strategy_handles(points["strategy"]))
    return figure


FIGURE = Figure("step_time_vs_tokens", "Time of a step against tokens on a device", all_batches, measured_points, draw)


def predicted(searches: Sequence[tuple[dict[str, Any], pd.DataFrame]], style: Style = PLAIN) -> Drawn:
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
    figure = draw(points.assign(value=1e3 * points["predicted_seconds"], sent=points["sent_bytes"]), style)
    devices = f"{points['devices'].iloc[0]} devices of {facts['topology']}"
    title = ["Predicted time of a step against tokens on a device", facts["preset"], facts["dtype"], devices]
    return described(figure, style, title, [], [how_certain(facts)])
