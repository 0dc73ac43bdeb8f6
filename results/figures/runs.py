"""The figures of runs: those of each workload in all formats, and the loss curves of training runs."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.cli.outputs import deduplicated, safe_name
from results.figures import experts, windows
from results.figures.canvas import Look, look_of
from results.figures.curves import is_counted, left_out, widest_batch, workloads
from results.figures.drawing import FIGURES, OF_ALL_BATCHES, figures_of
from results.figures.losses import loss_curves
from results.figures.pictures import METADATA, draw, themed
from results.records.rows import RecordError
from results.records.training import TrainingRun


def plot(rows: pd.DataFrame, out: Path, batch: int | None = None) -> list[Path]:
    """Write the figures of the rows as PNG and SVG; if there are several workloads, each gets its own folder.

    Workloads that differ only in the attention window, or in the routing, also get a figure together.

    Args:
        rows: a table from `results.records.rows.load`.
        out: the folder to write to; it is created if it does not exist.
        batch: the global batch, in sequences, of the figures that show one batch; by default the batch that most
            counted rows have.

    Returns:
        The paths written.

    Raises:
        RecordError: no row can be drawn, or none with this batch.
    """
    if not is_counted(rows).any():
        why = ", ".join(f"{count} {reason}" for reason, count in left_out(rows).items())
        raise RecordError(
            f"nothing to draw: no row was timed and equal to one device ({why}); each row's `reason` says more"
        )
    look = look_of(rows["strategy"].unique())
    drawable = {label: part for label, part in workloads(rows) if is_counted(part).any()}
    folders = [out / name for name in deduplicated(map(safe_name, drawable))] if len(drawable) > 1 else [out]
    paths = []
    with themed():
        for folder, part in zip(folders, drawable.values(), strict=True):
            paths += plot_workload(part, look, folder, batch or widest_batch(part))
        of_windows, of_routings = windows.sweeps(rows), windows.sweeps(rows, "forced", experts.SAME)
        for figure, name, found in (
            (windows.time_and_memory_vs_window, windows.NAME, dict(of_windows)),
            (experts.time_and_memory_vs_imbalance, experts.NAME, dict(of_routings)),
        ):
            labels = deduplicated(map(safe_name, found))
            names = [f"{name}-{label}" for label in labels] if len(found) > 1 else [name]
            for path, part in zip(names, found.values(), strict=False):
                at_batch = part[part["global_batch_sequences"] == (batch or widest_batch(part))]
                paths += draw_all(figure(at_batch, look), out / path)
    return paths


def plot_workload(rows: pd.DataFrame, look: Look, folder: Path, batch: int) -> list[Path]:
    """Write the figures of one workload, and return the paths written.

    Raises:
        RecordError: no row with this batch can be drawn.
    """
    batches = sorted(rows.loc[is_counted(rows), "global_batch_sequences"].unique())
    if batch not in batches:
        raise RecordError(
            f"nothing to draw with a global batch of {batch}; it can be {', '.join(f'{b:.0f}' for b in batches)}"
        )
    at_batch = rows[rows["global_batch_sequences"] == batch]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in figures_of(rows, at_batch):
        figure = FIGURES[name](rows if name in OF_ALL_BATCHES else at_batch, look)
        paths += draw_all(figure, folder / name)
    return paths


def plot_training(runs: Sequence[TrainingRun], folder: Path) -> list[Path]:
    """Write the loss curves of training runs, and return the paths written."""
    with themed():
        return draw_all(loss_curves(runs), folder / loss_curves.__name__)


def draw_all(figure: Figure, path: Path) -> list[Path]:
    """Write a figure in all formats, and return the paths written."""
    paths = [path.with_suffix(f".{suffix}") for suffix in METADATA]
    for each in paths:
        draw(figure, each)
    return paths
