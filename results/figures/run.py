"""The figures of runs: which there are, and the pictures of them that the rows of a run have points for."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice

import pandas as pd
from matplotlib.figure import Figure as Drawn

from benchmarks.cli.ending import Refused
from benchmarks.cli.outputs import deduplicated, safe_name
from results.figures import batches, imbalance, memory, step_parts, tokens, tradeoff, utilization, windows
from results.figures.curves import METRICS, figure_of
from results.figures.frame import Drawing, Figure, Style, described
from results.figures.tables import DRAWABLE, Batch, leave_out, not_drawn, reasons
from results.records.reading import RecordError
from results.records.rows import is_counted
from results.words import devices, how_noisy, joined, workload

CURVES = {(metric, kind): figure_of(metric, kind) for kind in ("strong", "weak") for metric in METRICS}
FIGURES = (
    *(CURVES[metric, "strong"] for metric in ("throughput", "speedup", "efficiency")),
    *(CURVES[metric, "weak"] for metric in ("throughput", "efficiency")),
    *(module.FIGURE for module in (memory, batches, tradeoff, step_parts, utilization, tokens, windows, imbalance)),
)
"""The figures of a folder, in the order of the command's output."""
OF_REAL_DEVICES = "speedup_vs_devices", "efficiency_vs_devices", "efficiency_vs_devices_weak"
"""Figures that are throughput in another unit on virtual devices, because more of them cannot be faster."""
BY_NAME = {figure.name: figure for figure in (*CURVES.values(), *FIGURES)}


def chosen(rows: pd.DataFrame, strategies: Sequence[str], devices: Sequence[int]) -> pd.DataFrame:
    """Return all rows; only those of some strategies and numbers of devices count. () keeps all.

    `single` is kept: the others are compared with it.
    """
    for option, column, values in (("--strategy", "strategy", strategies), ("--devices", "devices", devices)):
        known = sorted(rows[column].dropna().unique())
        if unknown := [value for value in values if value not in known]:
            there = ", ".join(f"{value:.0f}" if column == "devices" else value for value in known)
            raise Refused(f"{option} {unknown[0]}: the files have no row of it; it can be {there}")
        if values:
            others = ~rows[column].isin(values) & rows["strategy"].ne("single")
            rows = leave_out(rows, others, f"not chosen by {option}")
    return rows


def drawings_of_run(
    rows: pd.DataFrame, style: Style, batch: Batch = None, names: Sequence[str] = (), *, first: bool = False
) -> list[Drawing]:
    """Return the figures of these names, by default all that say something of the rows; with `first`, the pictures of
    the first figure that has any. If there are several workloads, each gets its own folder.

    Rows that are not to be drawn are left out. `batch` is the global batch of the figures that show one.
    """
    shown = rows[rows["left_out"].isin(DRAWABLE)]
    if shown.empty:
        why = f"no row was timed and equal to one device ({reasons(rows)})"
        raise RecordError(f"nothing to draw: {why}; each row's `reason` says more")
    batches = sorted(shown["global_batch_sequences"].unique())
    if isinstance(batch, int) and batch not in batches:
        there = ", ".join(f"{each:.0f}" for each in batches)
        raise RecordError(f"nothing to draw with a global batch of {batch}; it can be {there}")
    virtual = bool(shown["virtual_devices"].eq(True).all())
    figures = [BY_NAME[name] for name in names] or [
        figure for figure in FIGURES if not (virtual and figure.name in OF_REAL_DEVICES)
    ]
    found = filter(None, ([*pictures(figure, rows, batch, style)] for figure in figures))
    if drawings := [*chain.from_iterable(islice(found, 1 if first else None))]:
        return drawings
    why = [f"{figure.name}: {not_drawn(points)}" for figure in figures for _, points in groups(figure, rows, batch)]
    raise RecordError(f"nothing to draw; {' '.join(why)}".rstrip("; "))


def groups(figure: Figure, rows: pd.DataFrame, batch: Batch) -> list[tuple[str, pd.DataFrame]]:
    """Return a label and the points of each picture that a figure may have."""
    return [(label, figure.points(marked)) for label, marked in figure.of(rows, batch)]


def pictures(figure: Figure, rows: pd.DataFrame, batch: Batch, style: Style) -> Iterator[Drawing]:
    """Yield the pictures of a figure that have points."""
    found = groups(figure, rows, batch)
    labels = deduplicated(safe_name(label) for label, _ in found)
    for label, (_, points) in zip(labels, found, strict=True):
        if is_counted(points).any():
            name = f"{figure.name}-{label}" if figure.sweeps else f"{label}/{figure.name}"
            yield Drawing(name if len(found) > 1 else figure.name, partial(picture, figure, points, style))


def picture(figure: Figure, points: pd.DataFrame, style: Style) -> Drawn:
    """Draw a figure with its title, its caption, and the remarks that must not be missed."""
    counted = points[is_counted(points)]
    facts = counted.iloc[0].copy()
    facts[[name for name in ("attention", "forced") if counted[name].nunique(dropna=False) > 1]] = ""
    batches = joined([f"{batch:.0f}" for batch in sorted(counted["global_batch_sequences"].unique())], most=4)
    title = [figure.heading, facts["preset"], f"batch {batches}", facts["dtype"], devices(facts)]
    launches = counted["launches"].max() if "launches" in counted else 1
    caption = [
        f"{workload(facts)}.",
        figure.remark(counted),
        f"Numbers are over {launches:.0f} launches." if launches > 1 else "",
    ]
    return described(figure.draw(counted, style), style, title, caption, [not_drawn(points), how_noisy(counted)])
