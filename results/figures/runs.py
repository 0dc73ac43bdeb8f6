"""The figures of runs: those of each workload in all formats, and the loss curves of training runs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

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


class Drawing(NamedTuple):
    """A figure that is drawn when it is called for.

    Attributes:
        name: its path in the folder, without a suffix.
        figure: () -> the figure.
    """

    name: str
    figure: Callable[[], Figure]


def drawings_of_run(rows: pd.DataFrame, batch: int | None = None) -> list[Drawing]:
    """The figures of the rows; if there are several workloads, each gets its own folder.

    Workloads that differ only in the attention window, or in the routing, also get a figure together.

    Args:
        rows: a table from `results.records.rows.load`.
        batch: the global batch, in sequences, of the figures that show one batch; by default the batch that most
            counted rows have.
    """
    if not is_counted(rows).any():
        why = ", ".join(f"{count} {reason}" for reason, count in left_out(rows).items())
        raise RecordError(
            f"nothing to draw: no row was timed and equal to one device ({why}); each row's `reason` says more"
        )
    look = look_of(rows["strategy"].unique())
    drawable = {label: part for label, part in workloads(rows) if is_counted(part).any()}
    folders = [f"{name}/" for name in deduplicated(map(safe_name, drawable))] if len(drawable) > 1 else [""]
    drawings = list[Drawing]()
    for folder, part in zip(folders, drawable.values(), strict=True):
        drawings += drawings_of_workload(part, look, folder, batch or widest_batch(part))
    of_windows, of_routings = windows.sweeps(rows), windows.sweeps(rows, "forced", experts.SAME)
    for figure, name, found in (
        (windows.time_and_memory_vs_window, windows.NAME, dict(of_windows)),
        (experts.time_and_memory_vs_imbalance, experts.NAME, dict(of_routings)),
    ):
        labels = deduplicated(map(safe_name, found))
        names = [f"{name}-{label}" for label in labels] if len(found) > 1 else [name]
        for path, part in zip(names, found.values(), strict=False):
            at_batch = part[part["global_batch_sequences"] == (batch or widest_batch(part))]
            drawings.append(Drawing(path, partial(figure, at_batch, look)))
    return drawings


def drawings_of_workload(rows: pd.DataFrame, look: Look, folder: str, batch: int) -> Iterator[Drawing]:
    """Yield the figures of one workload; `folder` is empty, or ends with a slash."""
    batches = sorted(rows.loc[is_counted(rows), "global_batch_sequences"].unique())
    if batch not in batches:
        raise RecordError(
            f"nothing to draw with a global batch of {batch}; it can be {', '.join(f'{b:.0f}' for b in batches)}"
        )
    at_batch = rows[rows["global_batch_sequences"] == batch]
    for name in figures_of(rows, at_batch):
        yield Drawing(f"{folder}{name}", partial(FIGURES[name], rows if name in OF_ALL_BATCHES else at_batch, look))


def drawings_of_training(runs: Sequence[TrainingRun]) -> list[Drawing]:
    """The loss curves of training runs."""
    return [Drawing(loss_curves.__name__, partial(loss_curves, runs))]


def draw_all(drawings: Sequence[Drawing], out: Path) -> list[Path]:
    """Write figures as PNG and SVG into a folder, and return the paths written."""
    paths = list[Path]()
    with themed():
        for drawing in drawings:
            figure, path = drawing.figure(), out / drawing.name
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix in METADATA:
                paths.append(path.parent / f"{path.name}.{suffix}")
                draw(figure, paths[-1])
    return paths
