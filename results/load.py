"""Reads the files of `pytest benchmarks --benchmark-json=...` into one table: a row a benchmark, a column a fact.

Facts stay as recorded; what follows from them is derived elsewhere. Files that cannot share a figure are refused.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

SCHEMA_VERSION = 1

# Rows compare only on the same machine: these must be equal throughout.
MACHINE = ["fingerprint", "platform", "device_kind", "virtual_devices"]
# Rows compare only on the same work: each value of these has figures of its own.
WORKLOAD = ["preset", "param_count", "sequence_tokens", "dtype", "remat"]

TEXTS = ["status", "reason", "strategy", "mesh", "platform", "device_kind", "preset", "dtype", "remat"]
FLAGS = ["virtual_devices", "matches_single"]
NUMBERS = [
    "schema_version",
    "devices",
    "param_count",
    "global_batch_sequences",
    "sequence_tokens",
    "microbatches",
    "tokens_per_second",
    "memory.argument_bytes",
    "memory.parameter_bytes",
    "memory.optimizer_bytes",
    "memory.temp_bytes",
    "memory.output_bytes",
    "memory.alias_bytes",
    "memory.total_bytes",
]


class RecordError(ValueError):
    """A file that cannot be read as meshmark records, or that cannot be read together with another."""


def load(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Read benchmark files into one table.

    Each key of `extra_info` is a column of that name; `name` and `file` say where the row is from, `fingerprint` on
    what machine it was measured, and `samples` holds its step times in seconds (an empty tuple where none was taken).

    Raises:
        RecordError: a file is missing, is not a whole file of meshmark records, or does not go with the others.
    """
    rows = pd.DataFrame([record for path in paths for record in read_records(Path(path))])
    for column in NUMBERS:
        try:
            rows[column] = pd.to_numeric(rows[column])
        except (TypeError, ValueError) as error:
            raise RecordError(f"{column} is not a number: {error}; run the benchmarks again") from error
    refuse_several_machines(rows)
    refuse_repeated_rows(rows)
    return rows


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one file, each complete in its keys."""
    run = read_run(path)
    benchmarks = [row for row in run["benchmarks"] if "schema_version" in (row.get("extra_info") or {})]
    if not benchmarks:
        raise RecordError(
            f"{path} has {len(run['benchmarks'])} benchmarks, none of meshmark (no `schema_version` in extra_info); "
            "pass a file written by `pytest benchmarks --benchmark-json=FILE`"
        )
    for row in benchmarks:
        facts = row["extra_info"]
        if facts["schema_version"] > SCHEMA_VERSION:
            raise RecordError(
                f"{path} has schema_version {facts['schema_version']} and this meshmark reads {SCHEMA_VERSION}; "
                "update meshmark, or run the benchmarks again with this one"
            )
        if missing := [key for key in TEXTS + FLAGS + NUMBERS if key not in facts]:
            raise RecordError(f"{path}: {row['name']} lacks {', '.join(missing)}; run the benchmarks again")
        yield {
            "name": row["name"],
            "file": str(path),
            "fingerprint": run["machine_info"].get("fingerprint"),
            "samples": tuple((row.get("stats") or {}).get("data") or ()),
            **facts,
        }


def read_run(path: Path) -> dict[str, Any]:
    """Read one file as pytest-benchmark wrote it."""
    if not path.is_file():
        raise RecordError(f"{path} is not there; write it with `pytest benchmarks --benchmark-json={path}`")
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path} is cut short or not JSON ({error}); run the benchmarks again") from error
    if not isinstance(run, dict) or not {"benchmarks", "machine_info"} <= run.keys():
        raise RecordError(
            f"{path} is JSON but not pytest-benchmark's (no `benchmarks` and `machine_info`); "
            "pass a file written by `pytest benchmarks --benchmark-json=FILE`"
        )
    return run


def refuse_several_machines(rows: pd.DataFrame) -> None:
    """Refuse rows that were not all measured on one machine with one set of versions and flags."""
    for column in MACHINE:
        known = rows.dropna(subset=column).drop_duplicates(column)
        if len(known) > 1:
            values = " and ".join(f"{value} ({file})" for value, file in zip(known[column], known["file"], strict=True))
            raise RecordError(f"not comparable, {column} differs: {values}; plot them apart")


def refuse_repeated_rows(rows: pd.DataFrame) -> None:
    """Refuse a case that was measured twice: a curve would show the luckier one."""
    repeated = rows[rows.duplicated(["name", "microbatches", *WORKLOAD], keep=False)]
    if len(repeated):
        first, second = repeated[repeated["name"] == repeated["name"].iloc[0]]["file"].iloc[:2]
        raise RecordError(f"{repeated['name'].iloc[0]} is both in {first} and in {second}; plot one of them")
