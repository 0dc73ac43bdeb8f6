"""Reads the files of `pytest benchmarks --benchmark-json=...` into one table, a row per case and a column per fact.

The table has the recorded values only; other modules derive from them. Files that are not comparable are refused.
"""

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cases.columns import COLUMNS, column_of
from results.records.reading import RecordError, read_run, records_of

# Rows are comparable only on the same machine: these columns must be equal in all rows.
MACHINE = ["fingerprint", "platform", "device_kind", "virtual_devices"]
# Rows are comparable only for the same workload: each combination of these columns gets its own figures.
WORKLOAD = ["preset", "param_count", "sequence_tokens", "dtype", "remat", "attention", "forced"]
# Options of sparse attention. Records of older versions lack them: their attention is dense.
ATTENTION = [name for name, column in COLUMNS.items() if column.source == "attention"]

NEEDED = [
    *("status", "reason", "strategy", "mesh", "devices", "platform", "device_kind", "virtual_devices", "preset"),
    *("param_count", "global_batch_sequences", "sequence_tokens", "microbatches", "dtype", "remat"),
    *("step_seconds_median", "step_seconds_low", "step_seconds_high", "tokens_per_second", "matches_single", "noisy"),
    *("relative_to_single", "relative_to_single_low", "relative_to_single_high"),
    *("canary_ratio_low", "canary_ratio_high"),
    *(name for name in COLUMNS if name.startswith("attribution.") and name.endswith("_seconds")),
    *(f"memory.{part}_bytes" for part in ("argument", "parameter", "optimizer", "temp", "output", "alias", "total")),
]
"""Columns that figures read. Records of the same schema may lack others, which are newer than these."""


def load(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Read one or more benchmark files into one table, as `table_of` describes it."""
    try:
        files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    except TypeError as error:
        raise TypeError(f"the runs are {reprlib.repr(paths)}; pass a path, or a list of paths") from error
    return table_of((path, read_run(path)) for path in files)


def table_of(runs: Iterable[tuple[Path, Mapping[str, Any]]]) -> pd.DataFrame:
    """Return the rows of runs, each with the file that it was read from, as one table.

    It has all columns, unknown where a file lacks them, and further keys of `extra_info`. `attention` is the options of
    sparse attention as text, `forced` a forced routing (empty without one), and `samples` the step times in seconds (an
    empty tuple if nothing was timed).
    """
    rows = pd.DataFrame([record for path, run in runs for record in records_of(path, run, NEEDED)])
    lacking = [name for name, column in COLUMNS.items() if name not in rows and not column.is_family]
    rows = rows.reindex(columns=[*rows.columns, *lacking])
    rows = with_attention(pd.DataFrame({name: as_numbers(str(name), values) for name, values in rows.items()}))
    rows = rows.assign(forced=rows["routing"].where(rows["routing"].notna(), "").replace("learned", ""))
    refuse_several_machines(rows)
    refuse_repeated_rows(rows)
    return rows


def as_numbers(name: str, values: pd.Series) -> pd.Series:
    """Return the values of a column, as numbers if it has such: unknown ones are NaN."""
    column = column_of(name)
    return pd.to_numeric(values) if column and column.is_number else values


def with_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `attention`, the text of the columns of `ATTENTION`: empty if it is dense."""
    options = rows[ATTENTION]
    texts = [
        ",".join(f"{name}={value if isinstance(value, str) else int(value)}" for name, value in facts.items() if value)
        for facts in options.astype(object).where(options.notna(), None).to_dict("records")
    ]
    return rows.assign(attention=texts)


def refuse_several_machines(rows: pd.DataFrame) -> None:
    """Raise `RecordError` unless all rows were measured on one machine with one set of versions and flags."""
    for column in MACHINE:
        known = rows.dropna(subset=column).drop_duplicates(column)
        if len(known) > 1:
            values = " and ".join(f"{value} ({file})" for value, file in zip(known[column], known["file"], strict=True))
            raise RecordError(f"not comparable, {column} differs: {values}; plot them apart")


def refuse_repeated_rows(rows: pd.DataFrame) -> None:
    """Raise `RecordError` if a case was measured twice, because a curve would show the faster measurement."""
    repeated = rows[rows.duplicated(["name", "microbatches", *WORKLOAD], keep=False)]
    if len(repeated):
        first, second = repeated[repeated["name"] == repeated["name"].iloc[0]]["file"].iloc[:2]
        raise RecordError(f"{repeated['name'].iloc[0]} is both in {first} and in {second}; plot one of them")
