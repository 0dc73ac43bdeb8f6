"""Reads the JSON documents of searches and of predicted scaling: shared facts, and a table."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pandas as pd
from msgspec import Meta

from results.records.reading import read_document
from strategies.files import shown
from strategies.schema import Amount, Count, Number, Positive, Scalar, checked_fields

SCHEMA_VERSIONS = {"search": 2, "scaling": 1}
SEARCHED_BY = "`meshmark search --json FILE`"
SCALED_BY = "`meshmark search --scaling N..N --json FILE`"
NUMBERS = "needed_bytes", "bound_seconds", "predicted_seconds", "compiled.needed_bytes", "compiled.seconds"
CANDIDATE: dict[str, Any] = {
    "status": Literal["fits", "too_large", "infeasible"],
    **{"strategy": str, "mesh": str, "microbatches": Count, "remat": str, "options": dict[str, Scalar]},
    **dict.fromkeys((*NUMBERS, "measured.seconds"), Amount | None),
}
"""Columns of a candidate, with their types; it has others."""
POINT: dict[str, Any] = {"scaling": Literal["strong", "weak"], "devices": Count, "batch_size": Count}
"""Columns of a point of scaling, with their types; it has others."""

Limit = Literal[
    "matmuls",
    "memory bandwidth",
    "links inside a host",
    "network between hosts",
    "latency",
    "launches",
    "pipeline bubble",
]
"""What limits a step, as a search names it."""
BEST: dict[str, Any] = {
    **{"strategy": str, "mesh": str, "limit": Limit},
    **dict.fromkeys(("predicted_seconds", "tokens_per_second", "model_flops_utilization"), Positive),
}
"""Columns of the best at a point; None where nothing fits."""


class Trial(msgspec.Struct, frozen=True):
    """The fastest compiled step with other values of options, and the part of its time that they save."""

    options: dict[str, Scalar]
    compiled_seconds: Positive | None
    saves: Number | None


class Search(msgspec.Struct, frozen=True):
    """The result of a search; the fields but `candidates` are facts that all candidates share."""

    topology: str
    devices: Count
    capacity_bytes: Count
    usable_bytes: Count
    machine: str | None
    error: Amount | None
    error_assumed: bool
    preset: str
    param_count: Count
    global_batch_sequences: Count
    sequence_tokens: Count
    dtype: str
    candidates: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    trials: list[Trial] = []


class Scaling(msgspec.Struct, frozen=True):
    """Predicted times against devices; the fields but the last are facts that all points share."""

    device: str
    preset: str
    sequence_tokens: Count
    dtype: str
    machine: str
    error: Amount
    points: Annotated[list[dict[str, Any]], Meta(min_length=1)]


def read_search(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that a search wrote.

    Returns:
        The facts that all candidates share, and a table with a row for each candidate.

    Raises:
        RecordError: the file cannot be read, or the search did not write it.
    """
    facts, rows = _read(path, "search", Search, SEARCHED_BY, "candidates", lambda _: CANDIDATE)
    rows["options"] = [", ".join(f"{name}={value}" for name, value in each.items()) for each in rows["options"]]
    numbers = [*NUMBERS, "measured.seconds"]
    rows[numbers] = rows[numbers].apply(pd.to_numeric)
    return facts, rows


def read_scaling(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that `meshmark search --scaling` wrote.

    Returns:
        The facts that all points share, and a table with a row for each point.

    Raises:
        RecordError: the file cannot be read, or another command wrote it.
    """
    return _read(path, "scaling", Scaling, SCALED_BY, "points", columns_of_point)


def columns_of_point(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a point has: also those of its best, if anything fits there."""
    return POINT | (BEST if point.get("predicted_seconds") is not None else {})


def _read(
    path: Path,
    kind: str,
    form: type[msgspec.Struct],
    written_by: str,
    table: str,
    columns_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read a document; `table` is the field with its rows, and `columns_of` returns the types of a row's columns."""
    facts = msgspec.structs.asdict(read_document(path, kind, SCHEMA_VERSIONS[kind], form, written_by))
    rows = facts.pop(table)
    for number, row in enumerate(rows):
        checked_fields(row, columns_of(row), f"{shown(path)}: {table}[{number}]")
    return facts, pd.DataFrame(rows)
