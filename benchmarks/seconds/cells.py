"""Cells of tables that other people wrote: numbers, truths and names, in the spellings that occur."""

import math
import re
from collections.abc import Mapping
from typing import Any

from strategies.config import Infeasible

Row = Mapping[str, Any]

NOTHING = ("", "-", "nan", "none", "null", "n/a")
TRUTHS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1", "1.0", "on"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0", "0.0", "off", *NOTHING), False),
}
DTYPES = {
    **dict.fromkeys(("float16", "fp16", "half", "amp_fp16"), "float16"),
    **dict.fromkeys(("bfloat16", "bf16", "amp_bf16"), "bfloat16"),
}
"""Names of two-byte dtypes. Machines have no rates of others."""
RECOMPUTED = {
    **dict.fromkeys(("full", "true", "yes", "1", "uniform", "block"), "full"),
    **dict.fromkeys(("selective", "attention", "core_attn"), "dots"),
    **dict.fromkeys(("false", "no", "0", *NOTHING), "none"),
}
SCHEDULES = (
    ("interleav|virtual|vpp", "interleaved"),
    ("zb|zero.bubble", "zb-h1"),
    ("gpipe", "gpipe"),
    ("1f1b", "1f1b"),
)
"""Patterns of names of pipeline schedules, in the order in which they are tried."""
SHARDED = {
    **dict.fromkeys(("zero3", "full_shard", "fsdp", "hybrid_shard"), "zero3"),
    **dict.fromkeys(("zero2", "shard_grad_op"), "zero2"),
    **dict.fromkeys(("zero1", "distributed", "distributed_optimizer"), "zero1"),
}
"""Names of what is sharded besides the batch."""
CHUNKS = "chunks", "virtual_stages", "interleave", "virtual_pipeline"
"""Columns that may have the number of model chunks on a pipeline stage."""


def text(row: Row, column: str) -> str:
    """A cell in lower case, without space around it; empty if there is none."""
    value = row.get(column)
    return "" if value is None else str(value).strip().lower()


def number(row: Row, column: str) -> float | None:
    """The number in a cell; None if it is empty.

    Raises:
        Infeasible: it is no number.

    >>> number({"vocab": "51,200"}, "vocab"), number({"vocab": " "}, "vocab")
    (51200.0, None)
    """
    cell = text(row, column).replace(",", "")
    if cell in NOTHING:
        return None
    try:
        return float(cell)
    except ValueError:
        raise Infeasible(f"{column}={row[column]!r} is no number") from None


def whole(row: Row, column: str, default: int | None = None) -> int:
    """The whole number of at least 1 in a cell; the default if it is empty.

    Raises:
        Infeasible: it is another number, or there is neither a number nor a default.

    >>> whole({"data": "8.0"}, "data"), whole({"data": ""}, "data", 1)
    (8, 1)
    """
    value = number(row, column)
    value = default if value is None else value
    if value is None or not math.isfinite(value) or value != int(value) or value < 1:
        raise Infeasible(f"{column}={row.get(column)!r}; it must be a whole number of at least 1")
    return int(value)


def seconds(row: Row, column: str) -> float | None:
    """The seconds in a cell; None if it has no positive, finite number."""
    value = number(row, column)
    return value if value is not None and 0 < value < math.inf else None


def named(row: Row, column: str, names: Mapping[str, Any]) -> Any:
    """What a cell means, by a table of names.

    Raises:
        Infeasible: the table does not have it.
    """
    cell = text(row, column).replace("-", "_")
    if cell in names:
        return names[cell]
    raise Infeasible(f"{column}={row.get(column)!r} is not known; it can be {', '.join(filter(None, names))}")


def schedule(row: Row) -> tuple[str, int]:
    """The pipeline schedule of a row, and its model chunks on a stage.

    Raises:
        Infeasible: the schedule is not known.

    >>> schedule({"schedule": "1F1B-interleaved", "chunks": "3"}), schedule({"schedule": ""})
    (('interleaved', 3), ('1f1b', 1))
    """
    name, chunks = text(row, "schedule"), max(whole(row, column, 1) for column in CHUNKS)
    for pattern, known in SCHEDULES:
        if re.search(pattern, name):
            interleaved = known == "interleaved" or (known == "1f1b" and chunks > 1)
            return ("interleaved", max(2, chunks)) if interleaved else (known, 1)
    if name in NOTHING:
        return ("interleaved", chunks) if chunks > 1 else ("1f1b", 1)
    raise Infeasible(f"schedule={row['schedule']!r} is not known; known are {', '.join(each for _, each in SCHEDULES)}")


def device(row: Row) -> str:
    """The kind of devices of a row as chips.py names it, or its family alone if the row does not say which.

    >>> [device({"device": name}) for name in ("A100-SXM4-80GB", "A100", "NVIDIA H100 80GB HBM3", "H100-PCIe")]
    ['a100_80gb', 'a100', 'h100', 'h100_pcie']
    """
    cell = text(row, "device")
    if not (family := re.search(r"\b([a-z]+[0-9]+[a-z]?)(?![a-z0-9])", cell.replace("_", " ").replace("-", " "))):
        return cell
    name, memory = family[1], re.search(r"\b([0-9]{2,3}) ?gi?b?\b", cell.replace("_", " ").replace("-", " "))
    if name == "a100" and memory:
        return f"a100_{memory[1]}gb"
    return f"{name}_pcie" if name == "h100" and "pcie" in cell else name
