"""Reads the table that `meshmark predict --out` writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from strategies.files import read_table, shown
from strategies.schema import Count, Positive, SchemaError, checked

AXES = "data", "fsdp", "pipeline", "context", "tensor"
SIZES = "layers", "embed", "sequence", "devices", "batch_size", "microbatches", *AXES
SECONDS = "measured_seconds", "predicted_seconds"
LEFT_OUT = "left_out_seconds"
"""Predicted by constants to which the row's source did not contribute."""
NUMBERS = *(name for name in SIZES if name != "context"), *SECONDS, LEFT_OUT
"""Columns of numbers that a table must have. Older ones have no context axis."""
NOTHING = "", "-", "nan", "none", "null", "n/a"
"""Cells of numbers that are not known."""
WRITTEN_BY = "write it with `meshmark predict RUNS.csv --out PREDICTED.csv`"
TEXTS = "source", "device", "recompute", "problem", "kind", "machine.name", "machine.fitted"


def read(path: Path) -> pd.DataFrame:
    """Read a table of predictions, with the names of model and mesh.

    `error` is the relative error of a prediction, and `left_out` is the error of one made without the row's source.
    """
    table = read_table(path, [*NUMBERS, *TEXTS], WRITTEN_BY)
    kinds = {**dict.fromkeys(SIZES, Count | None), **dict.fromkeys((*SECONDS, LEFT_OUT), Positive | None)}
    rows = pd.DataFrame(
        [{**row, **numbers_in(row, kinds, f"{shown(path)}: row {place}")} for place, row in enumerate(table, start=1)]
    )
    rows[list(kinds)] = rows[list(kinds)].astype(float)
    rows["context"] = rows["context"].fillna(1)
    errors = {"error": rows["predicted_seconds"], "left_out": rows[LEFT_OUT]}
    errors = {name: seconds / rows["measured_seconds"] - 1 for name, seconds in errors.items()}
    model = rows["layers"].map("{:.0f} x ".format) + rows["embed"].map("{:.0f}".format)
    return rows.assign(**errors, model=model, mesh=rows[list(AXES)].apply(mesh_of, axis=1))


def numbers_in(row: Mapping[str, str], kinds: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """Return the numbers of a row. Those of a row that could not be predicted may be anything: its problem says why."""
    found: dict[str, float | None] = {}
    for name, kind in kinds.items():
        try:
            found[name] = number_in(row.get(name, ""), kind, f"{where}: {name}")
        except SchemaError:
            if not row["problem"]:
                raise
            found[name] = None
    return found


def number_in(cell: str, kind: Any, where: str) -> float | None:
    """Return the number in a cell, as JSON writes numbers; None if the cell is empty.

    >>> number_in("51.2", Positive | None, "row 1"), number_in("-", Positive | None, "row 1")
    (51.2, None)
    """
    if cell.lower() in NOTHING:
        return None
    try:
        value = msgspec.json.decode(cell)
    except msgspec.DecodeError:
        value = cell
    whole = isinstance(value, float) and value.is_integer()
    return checked(int(value) if whole else value, kind, where)


def mesh_of(sizes: pd.Series) -> str:
    """Name of a mesh: its axes of more than one device.

    >>> mesh_of(pd.Series({"data": 8.0, "fsdp": 1.0, "pipeline": 1.0, "tensor": 4.0}))
    'data=8,tensor=4'
    """
    return ",".join(f"{axis}={size:.0f}" for axis, size in sizes.items() if size != 1) or "data=1"


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that were predicted and measured."""
    return rows[rows["error"].notna()]


def without_own_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the predictions to which their source did not contribute."""
    return rows.assign(predicted_seconds=rows[LEFT_OUT], error=rows["left_out"])
