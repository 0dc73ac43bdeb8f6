"""Reads benchmark records, draws them, compares them and judges regressions. Nothing here imports JAX.

from results import load, plot

frame = load("run.json")  # a row for each case, a column for each fact and metric
axes = plot.throughput(frame)
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import benchmarks.cli  # noqa: F401 (Ctrl-C while a command is imported prints no traceback)

if TYPE_CHECKING:  # it takes longer to import than a command that is refused may
    import pandas as pd


def load(paths: "str | Path | Iterable[str | Path]") -> "pd.DataFrame":
    """Read one or more runs into a table: a row for each case, a column for each fact (docs/reference/columns.md).

    `results.records.rows.with_metrics` describes the further columns: `left_out` and the metrics.
    """
    from results.records import rows

    return rows.load(paths)
