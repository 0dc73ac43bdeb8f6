"""Rows of candidates, as JSON values, and the columns of tables that show them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.cases.case import Case, option_texts
from benchmarks.cli.tables import aligned
from benchmarks.devices.chips import GIB

CandidateRow = Mapping[str, Any]
"""Names of columns, as in the document of a search -> values; None where one is not known."""


def layout_row(case: Case) -> dict[str, Any]:
    """How a step is spread."""
    return {
        "strategy": case.strategy,
        "mesh": str(case.mesh),
        "microbatches": case.microbatches,
        "remat": case.remat,
        "options": dict(case.options),
    }


def options_text(row: CandidateRow) -> str:
    """Its options as on the command line; none for a row without layout."""
    if row["remat"] is None:
        return ""
    parts = () if row["microbatches"] == 1 else (("microbatches", row["microbatches"]),)
    return " ".join(option_texts((*parts, ("remat", row["remat"]), *row["options"].items())))


class Column(NamedTuple):
    """A column of a table: its header, the cell of a row, and the side on which cells are aligned."""

    header: str
    cell: Callable[[CandidateRow], str]
    align: str = "<"


def words(key: str, header: str, align: str = "<") -> Column:
    """A column of values as they are."""
    return Column(header, lambda row: str(row[key]), align)


def number(key: str, header: str, form: str = ",.0f", per_unit: float = 1) -> Column:
    """A column of numbers, times the number of units in one; cells are empty where a number is not known."""
    return Column(header, lambda row: "" if row[key] is None else f"{row[key] * per_unit:{form}}", ">")


def gibibytes(key: str, header: str) -> Column:
    """A column of bytes, in GiB."""
    return number(key, header, ".1f", 1 / GIB)


def milliseconds(key: str, header: str, form: str = ",.0f") -> Column:
    """A column of seconds, in milliseconds."""
    return number(key, header, form, 1e3)


def _bottleneck(row: CandidateRow) -> str:
    return next((f"{resource} {share:.0%}" for resource, share in (row["waits_for"] or {}).items()), "")


RANK = words("rank", "rank")
LAYOUT = words("strategy", "strategy"), words("mesh", "mesh"), Column("options", options_text)
TOKENS = number("tokens_per_second", "tokens/s")
UTILIZATION = number("model_flops_utilization", "MFU", ".0%")
BOTTLENECK = Column("bottleneck", _bottleneck)


def table(columns: Sequence[Column], rows: Iterable[CandidateRow]) -> list[str]:
    """The lines of a table."""
    cells = [tuple(column.cell(row) for column in columns) for row in rows]
    return aligned([tuple(column.header for column in columns), *cells], [column.align for column in columns])
