"""Draws the figures of runs: `meshmark plot runs/NAME.json [--out DIR]`.

Logs of `meshmark train`, whose names end with .jsonl, are drawn over one another as loss curves.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import apart, require_folder, safe_name, save
from results.cli import parsers
from results.cli.ending import refusing
from results.figures import windows
from results.figures.canvas import Look, look_of
from results.figures.curves import is_counted, left_out, widest_batch, workloads
from results.figures.drawing import FIGURES, OF_ALL_BATCHES, figures_of
from results.figures.losses import loss_curves
from results.figures.pictures import METADATA, draw, themed
from results.records.rows import RecordError, load
from results.records.training import SUFFIX, TrainingRun, read_training
from strategies.files import shown


def plot(rows: pd.DataFrame, out: Path, batch: int | None = None) -> list[Path]:
    """Write the figures of the rows as PNG and SVG; if there are several workloads, each gets its own folder.

    Workloads that differ only in the attention window also get a figure together.

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
        raise RecordError(f"nothing to draw, no row counts ({why}); each row's `reason` says more")
    look = look_of(rows["strategy"].unique())
    drawable = {label: part for label, part in workloads(rows) if is_counted(part).any()}
    folders = [out / name for name in apart(map(safe_name, drawable))] if len(drawable) > 1 else [out]
    paths = []
    with themed():
        for folder, part in zip(folders, drawable.values(), strict=True):
            paths += plot_workload(part, look, folder, batch or widest_batch(part))
        found = dict(windows.sweeps(rows))
        names = (
            [f"{windows.NAME}-{label}" for label in apart(map(safe_name, found))] if len(found) > 1 else [windows.NAME]
        )
        for name, part in zip(names, found.values(), strict=False):
            at_batch = part[part["global_batch_sequences"] == (batch or widest_batch(part))]
            paths += draw_all(windows.time_and_memory_vs_window(at_batch, look), out / name)
    return paths


def plot_workload(rows: pd.DataFrame, look: Look, folder: Path, batch: int) -> list[Path]:
    """Write the figures of one workload, and return the paths written.

    Raises:
        RecordError: no row with this batch can be drawn.
    """
    batches = sorted(rows.loc[is_counted(rows), "global_batch_sequences"].unique())
    if batch not in batches:
        raise RecordError(
            f"no row counts at a global batch of {batch}; it can be {', '.join(f'{b:.0f}' for b in batches)}"
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


def plot_of(files: Sequence[Path], batch: int | None) -> Callable[[Path], list[Path]]:
    """Read files, and return a function that draws them into a folder.

    Raises:
        RecordError: a file cannot be read, or the files are not all of one kind.
    """
    logs = [file for file in files if file.suffix == SUFFIX]
    if not logs:
        rows = load(files)
        return lambda folder: plot(rows, folder, batch)
    if others := [file for file in files if file.suffix != SUFFIX]:
        raise RecordError(f"{shown(logs[0])} is a log of training, and {shown(others[0])} is not; plot them apart")
    if batch:
        raise RecordError("--batch-size chooses among measured cases, and the log of a training run has none")
    runs = read_training(files)
    return lambda folder: plot_training(runs, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.plot()
    options = parser.parse_args(arguments)
    first = options.files[0]
    out = options.out or first.with_name(f"{first.stem}-figures")  # the hyphen: it shadows no package
    paths: list[Path] = []
    with refusing(parser):
        draw_into = plot_of(options.files, options.batch_size)
        require_folder(out)
        save(out, lambda folder: paths.extend(draw_into(folder)))
    print(*paths, sep="\n")


if __name__ == "__main__":
    run_command(main)
