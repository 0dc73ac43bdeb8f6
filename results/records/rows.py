"""Reads the files of `pytest benchmarks --benchmark-json=...` into one table: a row per case and a column per fact.

Metrics such as throughput, speed-up and efficiency are columns, too. Files that are not comparable are refused.

A row counts if it was timed, its step was found equal to that of one device, and it has the numbers that every curve
needs. Figures and the page count the rows that they do not show by the column `left_out`.
"""

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
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
COUNTED = ["strategy", "devices", "global_batch_sequences", "tokens_per_second"]
"""The columns that a row must have to be drawn in any curve."""
COMPILED_ONLY = "compiled only"
"""Why a row that was compiled and not timed is left out; memory is known of it."""
METRICS = "throughput", "speedup", "efficiency", "step_time", "memory", "mfu"
METRIC_COLUMNS = [
    *("left_out", "per_device"),
    *(f"{metric}{end}" for metric in METRICS for end in ("", "_low", "_high", "_ideal")),
    *(f"weak_{metric}{end}" for metric in METRICS for end in ("", "_low", "_high", "_ideal")),
]
"""Columns that `with_metrics` adds; some metrics have no interval or no ideal."""


def load(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Read one or more benchmark files into one table, as `table_of` describes it."""
    try:
        files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    except TypeError as error:
        raise TypeError(f"the runs are {reprlib.repr(paths)}; pass a path, or a list of paths") from error
    return table_of((path, read_run(path)) for path in files)


def table_of(runs: Iterable[tuple[Path, Mapping[str, Any]]]) -> pd.DataFrame:
    """Return the rows of runs, each with the file that it was read from, as one table.

    It has all columns, unknown where a file lacks them, further keys of `extra_info`, and the metrics (`with_metrics`).
    `attention` is the options of sparse attention as text, `forced` a forced routing (empty without one), and `samples`
    the step times in seconds (an empty tuple if nothing was timed).
    """
    rows = pd.DataFrame([record for path, run in runs for record in records_of(path, run, NEEDED)])
    lacking = [name for name, column in COLUMNS.items() if name not in rows and not column.is_family]
    rows = rows.reindex(columns=[*rows.columns, *lacking])
    rows = with_attention(pd.DataFrame({name: as_numbers(str(name), values) for name, values in rows.items()}))
    rows = rows.assign(forced=rows["routing"].where(rows["routing"].notna(), "").replace("learned", ""))
    refuse_several_machines(rows)
    refuse_repeated_rows(rows)
    return with_metrics(rows)


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


def is_counted(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether it counts."""
    return rows["left_out"].eq("")


def with_metrics(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `left_out` and the metrics to rows.

    Each of `METRICS` is a column, with its 95% interval in METRIC_low and METRIC_high, and its ideal in METRIC_ideal;
    `step_time` is in milliseconds, `memory` in bytes. Speedup is throughput over that of `single` at the same global
    batch, from blocks of the same rounds where both were timed interleaved, and efficiency is speedup over devices.
    Columns that begin with `weak_` compare with `single` at the batch of one device instead (Gustafson 1988,
    "Reevaluating Amdahl's law"). Virtual devices share one machine, so they count as one.
    """
    rows = rows.assign(left_out=why_left_out(rows), per_device=rows["global_batch_sequences"] / rows["devices"])
    tokens = rows["global_batch_sequences"] * rows["sequence_tokens"]
    ends = {end: rows[f"step_seconds_{end}"] for end in ("median", "low", "high")}
    columns = triple("throughput", rows["tokens_per_second"], tokens / ends["high"], tokens / ends["low"])
    columns |= triple("step_time", *(1e3 * each for each in ends.values()))
    columns |= triple("memory", rows["memory.total_bytes"]) | triple("mfu", rows["model_flops_utilization"])
    rows = rows.assign(**columns)
    for prefix, batch in (("", "global_batch_sequences"), ("weak_", "per_device")):
        rows = rows.assign(**against_single(rows, prefix, batch))
    return rows


def triple(
    name: str, value: pd.Series, low: pd.Series | float = np.nan, high: pd.Series | float = np.nan
) -> dict[str, Any]:
    """Return the columns of a metric and of the ends of its interval."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def against_single(rows: pd.DataFrame, prefix: str, batch: str) -> dict[str, Any]:
    """Return the metrics that compare each row with `single` on a global batch as large as the row's column `batch`."""
    single = rows[is_counted(rows) & rows["strategy"].eq("single")].sort_values("throughput")
    places = dict(zip(work_with(single, "global_batch_sequences"), single.index, strict=True))
    found = rows.reindex([places.get(work, -1) for work in work_with(rows, batch)]).set_index(rows.index)
    machines = rows["devices"].where(~rows["virtual_devices"].astype(bool), 1)
    speedup = quotient(rows, found)
    if not prefix:
        paired = {end: 1 / rows[f"relative_to_single{end}"] for end in ("", "_high", "_low")}
        speedup = [each.where(paired[""].notna(), other) for each, other in zip(paired.values(), speedup, strict=True)]
    ideal = found["throughput"] * machines
    tokens = rows["global_batch_sequences"] * rows["sequence_tokens"]
    columns = {
        **triple("speedup", *speedup),
        **triple("efficiency", *(each / machines for each in speedup)),
        "throughput_ideal": ideal,
        "speedup_ideal": ideal / found["throughput"],
        "efficiency_ideal": ideal / ideal,
        "step_time_ideal": 1e3 * tokens / ideal,
    }
    return {f"{prefix}{name}": values for name, values in columns.items()}


def work_with(rows: pd.DataFrame, batch: str) -> list[tuple[str, float]]:
    """Return the workload of each row with its value of a column of batches, as keys of a dictionary."""
    work = (" ".join(map(str, values)) for values in rows[WORKLOAD].itertuples(index=False))
    return list(zip(work, rows[batch].astype(float), strict=True))


def quotient(rows: pd.DataFrame, others: pd.DataFrame) -> list[pd.Series]:
    """Return the throughput over that of other rows, and the ends of its interval.

    The rows were not timed interleaved, so the relative half widths of both intervals add up in quadrature.
    """
    value = rows["throughput"] / others["throughput"]
    below, above = (
        np.hypot(
            np.log(rows[f"throughput_{end}"] / rows["throughput"]),
            np.log(others[f"throughput_{other}"] / others["throughput"]),
        )
        for end, other in (("low", "high"), ("high", "low"))
    )
    return [value, value * np.exp(-below), value * np.exp(above)]


def why_left_out(rows: pd.DataFrame) -> pd.Series:
    """Return why no curve has a row; "" if it counts."""
    equal = rows["matches_single"]
    complete = rows[COUNTED].notna().all(axis="columns")
    reasons = {
        COMPILED_ONLY: rows["kind"].eq("compiled"),
        "not equal to single": equal.eq(False),
        "not compared with single": ~equal.eq(True),
        f"without {' or '.join(COUNTED)}": ~complete,
    }
    words = pd.Series(np.select(list(reasons.values()), list(reasons), ""), rows.index)
    return rows["status"].where(rows["status"].ne("ok"), words)
