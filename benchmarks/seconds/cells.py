"""Cells of tables that other people wrote: numbers, truths and names, in the spellings that occur."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from strategies.infeasible import Infeasible

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


WHOLE = re.compile(r"([0-9]{1,18}|[0-9]{1,3}(,[0-9]{3}){1,5})(\.0*)?")
"""Counts. A comma separates three digits at a time, so a decimal comma is none."""
DECIMAL = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?")
LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e7
"""Of a step."""


def text(row: Row, column: str) -> str:
    """A cell in lower case, without space around it; empty if there is none."""
    value = row.get(column)
    return "" if value is None else str(value).strip().lower()


def whole(row: Row, column: str, default: int | None = None) -> int:
    """The whole number of at least 1 in a cell; the default if it is empty. Thousands may be separated by commas.

    Raises:
        Infeasible: it is something else, or there is neither a number nor a default.

    >>> whole({"vocab": "51,200"}, "vocab"), whole({"data": "8.0"}, "data"), whole({"data": ""}, "data", 1)
    (51200, 8, 1)
    """
    cell = text(row, column)
    if cell in NOTHING and default is not None:
        return default
    if not WHOLE.fullmatch(cell) or (value := int(cell.partition(".")[0].replace(",", ""))) < 1:
        raise Infeasible(f"{column}={told(row, column)}; it must be a whole number of at least 1, such as 51,200")
    return value


def seconds(row: Row, column: str) -> float | None:
    """The seconds in a cell; None if it is empty.

    Raises:
        Infeasible: it is no number of seconds of a step.

    >>> seconds({"step_seconds": "3.5"}, "step_seconds"), seconds({"step_seconds": ""}, "step_seconds")
    (3.5, None)
    """
    cell = text(row, column)
    if cell in NOTHING:
        return None
    if not DECIMAL.fullmatch(cell) or not LEAST_SECONDS <= float(cell) <= MOST_SECONDS:
        problem = f"it must be seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g} with a decimal point, such as 3.5"
        raise Infeasible(f"{column}={told(row, column)}; {problem}")
    return float(cell)


def told(row: Row, column: str) -> str:
    """A cell as a message shows it."""
    return reprlib.repr(row.get(column))


def named(row: Row, column: str, names: Mapping[str, Any]) -> Any:
    """What a cell means, by a table of names.

    Raises:
        Infeasible: the table does not have it.
    """
    cell = text(row, column).replace("-", "_")
    if cell in names:
        return names[cell]
    raise Infeasible(f"{column}={told(row, column)} is not known; it can be {', '.join(filter(None, names))}")


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
    names = ", ".join(each for _, each in SCHEDULES)
    raise Infeasible(f"schedule={told(row, 'schedule')} is not known; known are {names}")


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
