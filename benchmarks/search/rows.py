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
    layout = {"strategy": case.strategy, "mesh": str(case.mesh), "microbatches": case.microbatches}
    return layout | {"remat": case.remat, "options": dict(case.options)}


def options_text(row: CandidateRow) -> str:
    """Its options as on the command line; none for a row without layout."""
    if row["remat"] is None:
        return ""
    parts = () if row["microbatches"] == 1 else (("microbatches", row["microbatches"]),)
    return " ".join(option_texts((*parts, ("remat", row["remat"]), *row["options"].items())))


class Column(NamedTuple):
    """A column of a table: its header, a key or a function of a row, and of numbers the format and the units in one."""

    header: str
    of: str | Callable[[CandidateRow], Any]
    form: str = ""
    per_unit: float = 1

    def cell(self, row: CandidateRow) -> str:
        """The cell of a row; empty where a number is not known."""
        value = row[self.of] if isinstance(self.of, str) else self.of(row)
        if not self.form:
            return str(value)
        return "" if value is None else f"{value * self.per_unit:{self.form}}"


def _bottleneck(row: CandidateRow) -> str:
    return next((f"{resource} {share:.0%}" for resource, share in (row["waits_for"] or {}).items()), "")


WHOLE, GIBIBYTES, MILLISECONDS = ",.0f", (".1f", 1 / GIB), (",.0f", 1e3)
"""Forms of numbers, of bytes and of seconds."""
RANK = Column("rank", "rank")
STRATEGY, MESH, OPTIONS = Column("strategy", "strategy"), Column("mesh", "mesh"), Column("options", options_text)
LAYOUT = STRATEGY, MESH, OPTIONS
TOKENS = Column("tokens/s", "tokens_per_second", WHOLE)
UTILIZATION = Column("MFU", "model_flops_utilization", ".0%")
BOTTLENECK = Column("bottleneck", _bottleneck)


def table(columns: Sequence[Column], rows: Iterable[CandidateRow]) -> list[str]:
    """The lines of a table."""
    cells = [tuple(column.cell(row) for column in columns) for row in rows]
    sides = [">" if column.form else "<" for column in columns]
    return aligned([tuple(column.header for column in columns), *cells], sides)
