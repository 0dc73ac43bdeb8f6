"""Draws the curves of benchmark runs: `python -m results.plot results/runs/NAME.json [--out DIR]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns

from results.canvas import Look, look_of
from results.curves import attributed, counts, left_out, widest_batch, workloads
from results.figures import FIGURES
from results.load import RecordError, load

# Figures drawn twice from the same rows are the same files, so that a committed one shows what changed.
REPRODUCIBLE = {"svg.hashsalt": "meshmark"}
METADATA = {"png": {}, "svg": {"Date": None}}


def plot(rows: pd.DataFrame, out: Path, batch: int | None = None) -> list[Path]:
    """Write every figure of the rows as PNG and SVG, each workload's in a folder of its own if there are several.

    Args:
        rows: a table from `results.load.load`.
        out: the folder to write to, made if it is not there.
        batch: the global batch, in sequences, of all figures but throughput against batch; by default, the one at which
            most rows count.

    Returns:
        The paths written.

    Raises:
        RecordError: no row counts, or none at this batch.
    """
    if not counts(rows).any():
        why = ", ".join(f"{count} {reason}" for reason, count in left_out(rows).items())
        raise RecordError(f"nothing to draw, no row counts ({why}); each row's `reason` says more")
    look = look_of(rows["strategy"].unique())
    drawable = {label: part for label, part in workloads(rows) if counts(part).any()}
    paths = []
    with mpl.rc_context():
        sns.set_theme(style="whitegrid", rc=REPRODUCIBLE)
        for label, part in drawable.items():
            paths += plot_workload(part, look, out / label if len(drawable) > 1 else out, batch or widest_batch(part))
    return paths


def plot_workload(rows: pd.DataFrame, look: Look, folder: Path, batch: int) -> list[Path]:
    """Write every figure of one workload, and return the paths written."""
    batches = sorted(rows.loc[counts(rows), "global_batch_sequences"].unique())
    if batch not in batches:
        raise RecordError(
            f"no row counts at a global batch of {batch}; it can be {', '.join(f'{b:.0f}' for b in batches)}"
        )
    at_batch = rows[rows["global_batch_sequences"] == batch]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in FIGURES.items():
        if name == "where_time_goes" and attributed(at_batch).empty:
            continue  # it is measured only when it is asked for
        figure = draw(rows if name == "throughput_vs_batch" else at_batch, look)
        for suffix, metadata in METADATA.items():
            paths.append(folder / f"{name}.{suffix}")
            figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m results.plot", description="Draw the curves of benchmark runs.")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="written by pytest benchmarks --benchmark-json"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: results/figures/NAME, after the first file")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="global batch of the curves against devices and memory"
    )
    options = parser.parse_args(arguments)
    try:
        paths = plot(
            load(options.files), options.out or Path("results/figures", options.files[0].stem), options.batch_size
        )
    except (RecordError, OSError) as error:
        parser.exit(1, f"{error}\n")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
