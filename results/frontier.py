"""Draws what `python -m benchmarks.feasibility --json FILE` found: memory against the bound on throughput.

python -m results.frontier FILE [--out PICTURE]
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import Unwritable, require_apart, require_picture, save
from results import parsers
from results.figures.canvas import GREY, Look, byte_unit, look_of
from results.figures.curves import frontier
from results.figures.pictures import FORMATS, REPRODUCIBLE, draw
from results.records.reading import RecordError, check_kinds, is_amount, is_text, read_json

SCHEMA_VERSION = 1
FACTS = {
    "topology": str,
    "chip": str,
    "devices": int,
    "capacity_bytes": int,
    "preset": str,
    "param_count": int,
    "global_batch_sequences": int,
    "sequence_tokens": int,
    "dtype": str,
}
BYTES, SPEED = "needed_bytes", "tokens_per_second_per_device"
NUMBERS = [f"{source}.{name}" for source in ("formula", "compiled") for name in (BYTES, SPEED)]
KEYS = dict.fromkeys(("status", "strategy"), is_text) | dict.fromkeys(NUMBERS, is_amount)
CROWD = 1000
"""More points than that are drawn more lightly."""
SHOWN = 1.5
"""Times the capacity: what needs more is counted, and not drawn."""


def read(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """The facts that all candidates share, and the candidates, a row each.

    Raises:
        RecordError: it is not what the command wrote.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != "feasibility":
        raise RecordError(f"{path} is no file of `python -m benchmarks.feasibility --json FILE`")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path} has schema {document.get('schema_version')}, not {SCHEMA_VERSION}; run it again")
    for fact, kind in FACTS.items():
        if type(document.get(fact)) is not kind:
            raise RecordError(f"{path}: {fact} is {document.get(fact)!r}, not {kind.__name__}; run it again")
        if kind is int and document[fact] < 1:
            raise RecordError(f"{path}: {fact} is {document[fact]}, not at least 1; run it again")
    candidates = document.get("candidates")
    if not isinstance(candidates, list) or not candidates or not all(isinstance(each, dict) for each in candidates):
        raise RecordError(f"{path}: its `candidates` are no list of rows; run it again")
    for each in candidates:
        check_kinds(f"{path}: candidate {each.get('rank')}", each, KEYS)
    rows = pd.DataFrame(candidates)
    rows[NUMBERS] = rows[NUMBERS].apply(pd.to_numeric)
    return {fact: document[fact] for fact in FACTS}, rows


def beaten_by_none(rows: pd.DataFrame) -> pd.DataFrame:
    """Of the candidates that fit by formula those that no other beats in memory and in speed, smallest first."""
    names = {f"formula.{BYTES}": "memory.total_bytes", f"formula.{SPEED}": "tokens_per_second"}
    best = frontier(rows[rows["status"] == "fits"].rename(columns=names))
    return best.rename(columns={new: old for old, new in names.items()})


def figure_of(facts: dict[str, Any], rows: pd.DataFrame) -> Figure:
    """Draw every candidate where formulas put it, and an arrow from there to where its compiler did.

    Raises:
        RecordError: no candidate is feasible.
    """
    feasible = rows.dropna(subset=[f"formula.{BYTES}", f"formula.{SPEED}"])
    if feasible.empty:
        raise RecordError("nothing to draw, no candidate is feasible; each row's `reason` says why")
    divisor, unit = byte_unit(facts["capacity_bytes"])
    within = feasible[feasible[f"formula.{BYTES}"] <= SHOWN * facts["capacity_bytes"]]
    strategies = list(within["strategy"].value_counts().index)  # the most frequent is drawn first, below the others
    look = look_of(strategies)
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots()
    for name in strategies:
        mine = within[within["strategy"] == name]
        axes.scatter(
            mine[f"formula.{BYTES}"] / divisor,
            mine[f"formula.{SPEED}"],
            color=look["palette"][name],
            marker=look["markers"][name],
            s=14,
            alpha=0.25 if len(mine) > CROWD else 0.8,
            linewidths=0,
            rasterized=True,  # thousands of points
        )
    best = beaten_by_none(rows)
    axes.step(best[f"formula.{BYTES}"] / divisor, best[f"formula.{SPEED}"], where="post", color=GREY, label="frontier")
    axes.axvline(facts["capacity_bytes"] / divisor, color="black", linestyle="--", label="a device's memory")
    arrows(axes, rows.dropna(subset=[f"compiled.{BYTES}", f"formula.{BYTES}"]), divisor, look)
    axes.set(xlabel=f"memory per device ({unit})", ylabel="tokens/s per device, at most", ylim=(0, None))
    axes.set_xlim(0, SHOWN * facts["capacity_bytes"] / divisor)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle(
        f"What fits, and how fast it can be at most\n{what_it_is(facts)}", x=0.02, ha="left", fontsize="medium"
    )
    figure.supxlabel(textwrap.fill(caption(rows, len(within)), 120), fontsize="x-small", color=GREY)
    handles = [
        Line2D([], [], color=look["palette"][name], marker=look["markers"][name], linestyle="", label=name)
        for name in strategies
    ]
    lines, _ = axes.get_legend_handles_labels()
    compiled = Line2D([], [], color=GREY, marker="o", markeredgecolor="black", label="formula → compiled")
    figure.legend(handles=[*handles, *lines, compiled], loc="outside right center", frameon=False)
    return figure


def arrows(axes: Axes, compiled: pd.DataFrame, divisor: int, look: Look) -> None:
    """Lead from the formula's point to the compiler's; a program that was given up keeps its height."""
    for _, row in compiled.iterrows():
        begin = row[f"formula.{BYTES}"] / divisor, row[f"formula.{SPEED}"]
        speed = row[f"compiled.{SPEED}"]
        end = row[f"compiled.{BYTES}"] / divisor, begin[1] if pd.isna(speed) else speed
        colour, marker = (look[kind][row["strategy"]] for kind in ("palette", "markers"))
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": "black", "lw": 0.8}, zorder=3)
        axes.plot(*end, marker, color=colour, markeredgecolor="black", markersize=8, zorder=4)


def what_it_is(facts: dict[str, Any]) -> str:
    """The workload and the devices, in a line."""
    chip = "" if facts["topology"].startswith(facts["chip"]) else f" as {facts['chip']}"
    work = f"{facts['global_batch_sequences']} × {facts['sequence_tokens']} tokens, {facts['dtype']}"
    return (
        f"{facts['preset']} ({facts['param_count'] / 1e6:,.1f}M parameters), {work}, "
        f"on {facts['devices']} devices of {facts['topology']}{chip}"
    )


def caption(rows: pd.DataFrame, drawn: int) -> str:
    """How many candidates there are, how many are drawn, and why the others are not."""
    infeasible = int(rows["status"].eq("infeasible").sum())
    beyond = len(rows) - drawn - infeasible
    left_out = f"{infeasible} are infeasible, {beyond} need more than {SHOWN:g} times a device's memory"
    bounds = "Speeds are bounds by published figures: everything overlaps, and nobody waits but for bubbles."
    return f"{drawn} of {len(rows)} candidates drawn: {left_out}. {bounds}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.frontier()
    options = parser.parse_args(arguments)
    out = options.out or options.file.with_suffix(".png")
    try:
        require_apart({"--out" if options.out else "the picture": out}, [options.file])
        facts, rows = read(options.file)
        require_picture(out, FORMATS)
        with mpl.rc_context():
            sns.set_theme(style="whitegrid", rc=REPRODUCIBLE)
            figure = figure_of(facts, rows)
            save(out, lambda path: draw(figure, path))
    except (RecordError, Unwritable) as error:
        parser.exit(BROKEN_INPUT, f"{error}\n")
    print(out)


if __name__ == "__main__":
    run_command(main)
