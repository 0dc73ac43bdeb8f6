"""The figure of a search: times of a step and memory, one line per candidate."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.frame import PLAIN, Style, described, legend, opened
from results.figures.palette import GREY, PURE_BLACK, WHITE, strategy_looks
from results.records.reading import RecordError
from results.words import byte_unit, parameters

MOST, MOST_UNTRIED = 24, 12
"""Most candidates in a figure, and most of those that were neither compiled nor measured."""
TIMES = {
    "least_ms": ("bound_seconds", "roofline"),
    "predicted_ms": ("predicted_seconds", "predicted"),
    "compiled_ms": ("compiled.seconds", "as compiled"),
    "measured_ms": ("measured.seconds", "measured"),
}
"""Column of a step time -> the column of a row that it is from, and its label."""
MARKS: dict[str, dict[str, Any]] = {
    "least_ms": {"marker": "|", "markersize": 12, "markeredgewidth": 2},
    "predicted_ms": {"marker": "o", "markersize": 8, "markerfacecolor": WHITE, "markeredgewidth": 1.5},
    "compiled_ms": {"marker": "s", "markersize": 8, "markeredgecolor": PURE_BLACK},
    "measured_ms": {"marker": "x", "markersize": 8, "markeredgewidth": 2},
}


def drawn_candidates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates to show, in their order: the compiled, the measured and the best of each layout.

    A layout is a strategy and a set of mesh axes. The columns of `TIMES` are added, in milliseconds.
    """
    fitting = rows[(rows["status"] == "fits") & rows["predicted_seconds"].notna()]
    shown_anyway = tried(rows)
    if fitting.empty and shown_anyway.empty:
        raise RecordError("nothing to draw, no candidate fits; each row's `reason` says why")
    axes = fitting["mesh"].str.replace(r"=\d+", "", regex=True)
    best = fitting.groupby([fitting["strategy"], axes], sort=False).head(1).head(MOST_UNTRIED)
    shown = rows.loc[sorted({*shown_anyway.index, *best.index})]
    return shown.assign(**{name: 1e3 * shown[column] for name, (column, _) in TIMES.items()})


def tried(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates that were compiled or measured, as far as memory or a time is known."""
    return rows.dropna(subset=["compiled.needed_bytes", "measured.seconds"], how="all")


def figure_of(facts: dict[str, Any], rows: pd.DataFrame, style: Style = PLAIN) -> Figure:
    """Draw step times and memory.

    Facts and rows are those of `read_search`: the candidates, a row each, best first.
    """
    shown = drawn_candidates(rows).head(MOST)
    size = (13.0, 2.0 + 0.42 * len(shown))
    figure, (left, right) = opened(style, 2, size, columns=2, sharex=False, sharey=True, width_ratios=(2, 1))
    draw_times(left, shown)
    draw_memory(right, shown, facts["capacity_bytes"])
    left.set_yticks(range(len(shown)), [label_of(row) for row in shown.to_dict("records")], size="small")
    left.set_ylim(len(shown) - 0.4, -0.6)
    marks = [
        Line2D([], [], color=GREY, linestyle="", label=label, **MARKS[name])
        for name, (_, label) in TIMES.items()
        if shown[name].notna().any()
    ]
    bar = Line2D([], [], color=GREY, linewidth=6, label="memory as compiled")
    sizes = [
        *([bar] if shown["compiled.needed_bytes"].notna().any() else []),
        Line2D([], [], color=PURE_BLACK, linestyle="", marker="|", markersize=8, label="memory by formula"),
        Line2D([], [], color=PURE_BLACK, linestyle="--", linewidth=1, label="memory of the chip"),
    ]
    legend(figure, [*marks, *sizes], below=True)
    title = ["The best candidates of a search", *what_was_searched(facts).split(", ")]
    caption = ["The roofline is at the chip's peak, with all communication hidden."]
    fitting, large, infeasible = counts_by_status(rows)
    compiled, measured = (int(shown[name].notna().sum()) for name in ("compiled.needed_bytes", "measured.seconds"))
    drawn = f"{len(shown)} of {len(rows)} candidates drawn, {compiled} of them compiled and {measured} measured."
    counts = f"By formula {fitting} fit, {large} are too large, {infeasible} are infeasible."
    return described(figure, style, title, caption, [drawn, counts, how_certain(facts)])


def counts_by_status(rows: pd.DataFrame) -> list[int]:
    """Return how many candidates fit, are too large, and are infeasible."""
    status = rows["status"].value_counts()
    return [int(status.get(name, 0)) for name in ("fits", "too_large", "infeasible")]


def draw_times(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw the times of each candidate on a line."""
    looks = strategy_looks(shown["strategy"])
    times = shown[[*TIMES]]
    axes.hlines(range(len(shown)), times.min(axis=1), times.max(axis=1), color=GREY, linewidth=1, zorder=1)
    for place, row in enumerate(shown.to_dict("records")):
        for name, mark in MARKS.items():
            axes.plot(row[name], place, color=looks[row["strategy"]].colour, zorder=3, **mark)
    axes.set(xlabel="time of a step (ms)", xlim=(0, 1.05 * times.max().max()))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def draw_memory(axes: Axes, shown: pd.DataFrame, capacity_bytes: float) -> None:
    """Draw the memory of each candidate as compiled, by formula, and the memory that a device has."""
    divisor, unit = byte_unit(capacity_bytes)
    formula, held = (shown[name] / divisor for name in ("needed_bytes", "compiled.needed_bytes"))
    colours = [look.colour for look in map(strategy_looks(shown["strategy"]).__getitem__, shown["strategy"])]
    axes.barh(range(len(shown)), held.fillna(0), height=0.45, color=colours, linewidth=0)
    axes.plot(formula, range(len(shown)), "|", color=PURE_BLACK, markersize=13, markeredgewidth=1.5)
    axes.axvline(capacity_bytes / divisor, color=PURE_BLACK, linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.05 * max(capacity_bytes / divisor, formula.max(), held.max() if held.notna().any() else 0))
    axes.set_xlabel(f"memory of a device ({unit})")
    axes.grid(visible=False, axis="y")


def label_of(row: dict[Any, Any]) -> str:
    """Name a candidate in two lines: its strategy and mesh, then microbatches and options.

    >>> label_of({"strategy": "fsdp", "mesh": "fsdp=8", "microbatches": 2, "remat": "dots", "options": ""})
    'fsdp fsdp=8\\n2 microbatches, remat dots'
    """
    microbatches = f"{row['microbatches']} microbatches" if row["microbatches"] > 1 else ""
    more = [microbatches, f"remat {row['remat']}", row["options"]]
    return f"{row['strategy']} {row['mesh']}\n{', '.join(filter(None, more))}"


def what_was_searched(facts: dict[str, Any]) -> str:
    """Name the workload and the devices in a line."""
    batch = f"{facts['global_batch_sequences']} sequences of {facts['sequence_tokens']} tokens"
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), {batch}, {facts['dtype']}, "
        f"on {facts['devices']} devices of {facts['topology']}"
    )


def how_certain(facts: dict[str, Any]) -> str:
    """Say how far predictions are off."""
    if facts["interval"] is None:
        return "Steps on virtual CPU devices are measured, not predicted."
    low, high = facts["interval"]
    likely = f"{low - 1:+.0%} to {high - 1:+.0%} with a probability of 80%"
    return f"Predictions are by the machine file {facts['machine']}; times are {likely}."
