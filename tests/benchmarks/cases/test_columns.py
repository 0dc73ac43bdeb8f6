"""The table of columns: of every column of a row, once, and as docs/reference/columns.md has it."""

import re

import pytest

from benchmarks.cases.columns import COLUMNS, Column, column_of
from benchmarks.program.kernels import kernel_columns
from docs.reference.columns import PARTS, tables
from results.records.reading import TYPES, check_columns
from strategies.core.traffic import SENT
from tests.benchmarks.run.records import MEASURED, NOTHING_KNOWN
from tests.processes import ROOT

OF_ONE_GPU = MEASURED.adding(kernel_columns([]))


def test_every_column_is_said_once() -> None:
    """Each column of a row has one line in the table, and the table has no line that no row has."""
    keys = OF_ONE_GPU.as_extra_info()
    assert {key: sum(column.covers(key) for column in COLUMNS.values()) for key in keys} == dict.fromkeys(keys, 1)
    assert {column.name for key in keys if (column := column_of(key))} == COLUMNS.keys()


@pytest.mark.parametrize("column", COLUMNS.values(), ids=lambda column: column.name)
def test_a_line_has_known_words(column: Column) -> None:
    """A type that is read, a part of the page, a meaning; only numbers have gates, and these have a direction."""
    assert column.type in TYPES
    assert column.part in PARTS
    assert column.meaning.endswith(".")
    assert column.gate in ("", "exact", "tracked")
    assert column.better in (("lower", "higher") if column.gate else ("",))
    assert column.is_number or not (column.gate or column.unit)


def test_what_a_record_writes_is_read() -> None:
    """The values of a row are of the types of their columns."""
    for record in (NOTHING_KNOWN, MEASURED):
        check_columns(record.as_extra_info(), COLUMNS.keys() & record.as_extra_info().keys(), "row")


def test_the_page_is_what_is_made_of_it() -> None:
    """To regenerate it: `python docs/reference/columns.py`."""
    assert (ROOT / "docs" / "reference" / "columns.md").read_text().endswith(tables() + "\n")


@pytest.mark.parametrize("family", [each for each in COLUMNS.values() if each.is_family], ids=lambda each: each.name)
def test_a_family_names_its_members(family: Column) -> None:
    """One line of the table stands for many columns: it has every word that stands in the brackets, but for axes."""
    found = [key.split(".") for key in OF_ONE_GPU.as_extra_info() if family.covers(key)]
    assert len(found) > 1
    words = {place: {key[at] for key in found} for at, place in enumerate(family.name.split(".")) if "<" in place}
    listed = [words.get(place, set()) for place in ("<kind>", "<where>", "<kernel>")]
    expected = set[str]().union(*listed, {"several"} & words.get("<axis>", set()))
    assert set(re.findall(r"`(\w+)`", family.meaning)) == expected
    assert words.get("<kind>", SENT.keys()) == SENT.keys()
