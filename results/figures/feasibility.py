"""The figure of a search: least, predicted and replayed time of a step, and memory, one line per candidate."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.canvas import byte_unit, caption, parameters
from results.figures.palette import GREY, PURE_BLACK, WHITE, strategy_looks
from results.records.reading import RecordError

BYTES, SPEED = "needed_bytes", "tokens_per_second_per_device"
MOST, MOST_UNCOMPILED = 24, 12
"""Most candidates in a figure, and most of those that were not compiled."""
TIMES = {
    "least_ms": ("formula", "least time, by formula"),
    "predicted_ms": ("predicted", "predicted"),
    "replayed_ms": ("compiled", "replayed, as compiled"),
}
"""Column of a step time -> the source of its throughput in a row, and its label."""


def with_times(facts: dict[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns of `TIMES` in milliseconds, from the throughputs of a device; unknown, endless times are NaN."""
    tokens = facts["global_batch_sequences"] * facts["sequence_tokens"] / facts["devices"]
    names = {name: f"{source}.{SPEED}" for name, (source, _) in TIMES.items()}
    speeds = rows.reindex(columns=[*names.values()]).apply(pd.to_numeric)
    speeds = speeds.where(speeds != 0)
    return rows.assign(**{name: 1e3 * tokens / speeds[column] for name, column in names.items()})


def best_of_each_mesh(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the best candidate of each strategy and set of mesh axes; a search lists the best candidates first."""
    feasible = rows[rows["status"] != "infeasible"]
    axes = feasible["mesh"].fillna("").str.replace(r"=\d+", "", regex=True)
    return feasible.groupby([feasible["strategy"], axes], sort=False).head(1)


def compiled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates whose memory the compiler reported."""
    return rows.dropna(subset=f"compiled.{BYTES}")


def drawn_candidates(facts: dict[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates that a figure shows, compiled ones and the best of each mesh, fastest predicted first."""
    best = best_of_each_mesh(rows).head(MOST_UNCOMPILED)
    shown = with_times(facts, rows.loc[sorted({*compiled(rows).index, *best.index})]).head(MOST)
    order = shown["predicted_ms"].fillna(shown["least_ms"])
    return shown.loc[order.sort_values(kind="stable").index]


def figure_of(facts: dict[str, Any], rows: pd.DataFrame) -> Figure:
    """Draw step times and memory.

    Args:
        facts: what all candidates share, as `read_search` returns it.
        rows: the candidates, a row each.

    Raises:
        RecordError: no candidate is feasible.
    """
    feasible = rows.dropna(subset=[f"formula.{BYTES}", f"formula.{SPEED}"])
    if feasible.empty:
        raise RecordError("nothing to draw, no candidate is feasible; each row's `reason` says why")
    shown = drawn_candidates(facts, feasible)
    figure = Figure(figsize=(13, 2.3 + 0.44 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    draw_times(left, shown)
    draw_memory(right, shown, facts["capacity_bytes"])
    left.set_yticks(range(len(shown)), [label_of(row) for row in shown.to_dict("records")], size="small")
    left.set_ylim(len(shown) - 0.4, -0.6)
    figure.suptitle(f"The best candidates of a search\n{what_was_searched(facts)}", x=0.02, ha="left", size="medium")
    caption(figure, what_is_drawn(rows, shown))
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1), "frameon": False, "fontsize": "small"}
    times, sizes = legend_handles()
    left.legend(handles=times, ncols=len(times), **above)
    right.legend(handles=sizes, **above)
    return figure


def counts_by_status(rows: pd.DataFrame) -> list[int]:
    """Return how many candidates fit, are too large, and are infeasible."""
    status = rows["status"].value_counts()
    return [int(status.get(name, 0)) for name in ("fits", "too_large", "infeasible")]


def draw_times(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw the three times of each candidate on a line."""
    looks = strategy_looks(shown["strategy"])
    times = shown[[*TIMES]]
    axes.hlines(range(len(shown)), times.min(axis=1), times.max(axis=1), color=GREY, linewidth=1, zorder=1)
    for place, row in enumerate(shown.to_dict("records")):
        look = looks[row["strategy"]]
        looks_of_times: list[dict[str, Any]] = [
            {"marker": "|", "markersize": 12, "markeredgewidth": 2},
            {"marker": "o", "markersize": 8, "markerfacecolor": WHITE, "markeredgewidth": 1.5},
            {"marker": look.marker, "markersize": 8, "markeredgecolor": PURE_BLACK},
        ]
        for name, style in zip(TIMES, looks_of_times, strict=True):
            axes.plot(row[name], place, color=look.colour, zorder=3, **style)
    axes.set(xlabel="time of a step (ms)", xlim=(0, 1.05 * times.max().max() if times.notna().any(axis=None) else 1))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def draw_memory(axes: Axes, shown: pd.DataFrame, capacity_bytes: float) -> None:
    """Draw the memory of each candidate as compiled, by formula, and the memory that a device has."""
    divisor, unit = byte_unit(capacity_bytes)
    formula, held = (shown[f"{source}.{BYTES}"] / divisor for source in ("formula", "compiled"))
    colours = [look.colour for look in map(strategy_looks(shown["strategy"]).__getitem__, shown["strategy"])]
    axes.barh(range(len(shown)), held.fillna(0), height=0.45, color=colours, linewidth=0)
    axes.plot(formula, range(len(shown)), "|", color=PURE_BLACK, markersize=13, markeredgewidth=1.5)
    axes.axvline(capacity_bytes / divisor, color=PURE_BLACK, linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.05 * max(capacity_bytes / divisor, formula.max(), held.max() if held.notna().any() else 0))
    axes.set_xlabel(f"memory of a device ({unit})")
    axes.grid(visible=False, axis="y")


def legend_handles() -> tuple[list[Line2D], list[Line2D]]:
    """Return the entries of the legends of times and of sizes."""
    least, predicted, replayed = (label for _, label in TIMES.values())
    times: dict[str, dict[str, Any]] = {
        least: {"marker": "|", "markeredgewidth": 2},
        predicted: {"marker": "o", "markerfacecolor": WHITE},
        replayed: {"marker": "s", "markeredgecolor": PURE_BLACK},
    }
    sizes = [
        Line2D([], [], color=GREY, linewidth=6, label="as compiled"),
        Line2D([], [], color=PURE_BLACK, linestyle="", marker="|", markersize=8, label="by formula"),
        Line2D([], [], color=PURE_BLACK, linestyle="--", linewidth=1, label="what a device has"),
    ]
    marks = [Line2D([], [], color=GREY, linestyle="", markersize=8, label=label, **times[label]) for label in times]
    return marks, sizes


def label_of(row: dict[Any, Any]) -> str:
    """Name a candidate in two lines: its strategy and mesh, then microbatches and options.

    >>> label_of({"strategy": "fsdp", "mesh": "fsdp=8", "microbatches": 2, "remat": "dots", "options": ""})
    'fsdp fsdp=8\\n2 microbatches, remat dots'
    """
    microbatches, remat, options = (row.get(name) for name in ("microbatches", "remat", "options"))
    more = [
        f"{microbatches:.0f} microbatches" if microbatches and microbatches > 1 else "",
        f"remat {remat}" if isinstance(remat, str) else "",
        options.replace(",", ", ") if isinstance(options, str) else "",
    ]
    name = f"{row['strategy']} {row['mesh'] or ''}".strip()
    return "\n".join(filter(None, [name, ", ".join(filter(None, more))]))


def what_was_searched(facts: dict[str, Any]) -> str:
    """Name the workload and the devices in a line."""
    chip = "" if facts["topology"].startswith(facts["chip"]) else f" as {facts['chip']}"
    batch = f"{facts['global_batch_sequences']} sequences of {facts['sequence_tokens']} tokens"
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), {batch}, {facts['dtype']}, "
        f"on {facts['devices']} devices of {facts['topology']}{chip}"
    )


def what_is_drawn(rows: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Say which candidates are drawn, and what the times are."""
    fitting, large, infeasible = counts_by_status(rows)
    drawn = f"{len(shown)} of {len(rows)} candidates drawn, {len(compiled(shown))} of them compiled."
    counts = f"By formula {fitting} fit, {large} are too large, {infeasible} are infeasible."
    meaning = "The least time assumes the chip's published rates and full overlap."
    return f"{drawn} {counts} {meaning} A replay runs the compiled schedule at these rates. Nothing was measured."
